"""Rewrites captured calls in a smaller vocabulary: identities vanish, means become sums over the global count.

A plan computes the same as one device, not an average of averages. So the sum, whose parts add up, is an operator of
its own, and the count is that of the whole batch.

Slices of fused projections become parts of an axis made of two: `qkv[..., :n]`, `qkv[..., n : 2 * n]` and
`qkv[..., 2 * n :]` are three parts of an axis of 3 n elements. As a reshape and `select`, the axis of the weight is
[3, heads, head_dim], as in models that reshape it themselves, and the heads can be split. Every n-th row of a batch,
`x[0::2]` and `x[1::2]` for the two answers of each question, is a position of an axis that is made of two, too: a part
with whole pairs has both. So is every n-th feature: the gate and the input of gpt-oss's experts alternate. Each buffer
that the forward changes gets an operator that makes its new value: a program writes a buffer where that is computed,
and the value counts from the next step on.
"""

import math
from collections.abc import Iterator

import torch

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.capture import Capture, running_statistics
from ssdsl.model.capture.errors import StatisticsRead
from ssdsl.model.graph import Origin, Ref, changed_statistics
from ssdsl.model.ops.families.move import REGROUPINGS
from ssdsl.model.ops.registry import find
from ssdsl.model.rewrite.calls import inline, learning, rename, rename_results, retarget, temporary
from ssdsl.model.rewrite.rules import rewritten
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError

aten = torch.ops.aten
COPIES = ("clone", "copy")
# calls that return what they are given if its shape and dtype stay the same
SAME = {*"alias clone contiguous lift_fresh_copy _to_copy to expand slice".split(), *REGROUPINGS}


def normalise(capture: Capture) -> Capture:
    """The same computation without identities, with losses and means as sums, and with views as `reshape`."""
    normal = replace(capture, calls=[], tensors=dict(capture.tensors))
    renamed: dict[str, str] = {}
    learns = learning(capture)
    statistics = {name for call in capture.calls for name in running_statistics(call)}
    for call in capture.calls:
        call = _joining(_on_its_device(rename(call, renamed)), normal)
        if (same := _identity(call, normal, not learns.isdisjoint(call.refs()))) is not None:
            if call.kind in COPIES and same in statistics:  # which a batch norm may change before the copy is read
                normal.calls.append(retarget(call, aten.mul.Scalar, Ref(same), 1.0))
            else:
                renamed[call.outputs[0]] = renamed.get(same, same)
        else:
            renamed.update(_statistics(call))
            normal.calls += rewritten(call, normal)
    normal.calls[:] = take_apart(normal)
    rename_results(normal, renamed)
    check_statistics(normal)
    compute_updates(normal)
    return normal


def _on_its_device(call: CapturedCall) -> CapturedCall:
    """The call without a device, if it reads tensors, which have one: a part runs where the plan places it."""
    if call.refs() and "device" in call.kwargs:
        return replace(call, kwargs={k: v for k, v in call.kwargs.items() if k != "device"})
    return call


def _joining(call: CapturedCall, capture: Capture) -> CapturedCall:
    """The call; a concatenation without empty tensors, such as a cache before its first use.

    These would keep its axis whole. They stay if they decide the dtype of the result.
    """
    if call.target.name() != "aten::cat":
        return call
    given = [(item, capture.tensors[item.value]) for item in call.args[0]]
    kept = tuple(item for item, tensor in given if math.prod(tensor.shape))
    dtype = capture.tensors[call.outputs[0]].dtype
    if not kept or any(capture.tensors[item.value].dtype != dtype for item in kept):
        return call
    return replace(call, args=(kept, *call.args[1:]))


def _identity(call: CapturedCall, capture: Capture, learns: bool) -> str | None:
    """The value that a call returns unchanged, if it does; `learns`: a gradient may flow through it."""
    if call.kind == "cat" and call.target.namespace == "aten" and len(call.args[0]) == 1:
        return str(call.args[0][0].value)
    if call.target is aten.copy.default:
        source = capture.tensors[call.args[1].value]
        return call.args[1].value if replace(source, differentiable=False) == capture.tensors[call.outputs[0]] else None
    if not call.args or not isinstance(call.args[0], Ref) or call.target.namespace != "aten":
        return None
    given = call.args[0].value
    before, after = capture.tensors.get(given), capture.tensors.get(call.outputs[0])
    if before is None or after is None or before.shape != after.shape or before.dtype != after.dtype:
        return None
    if call.kind in SAME:
        return given
    if call.kind == "detach" and not learns:
        return given
    if call.target is aten.dropout.default and not (call.args[1] and call.args[2]):
        return given
    if call.kind == "pad" and not any(call.args[1]):
        return given
    if call.kind in ("add", "sub") and call.args[1] == 0 and not isinstance(call.args[1], Ref):  # as in Python's `sum`
        return given
    return None


def _statistics(call: CapturedCall) -> dict[str, str]:
    """The buffer of each new running statistic that a functional batch norm returns: later calls read the buffer."""
    new = call.outputs[3:] if call.kind == "_native_batch_norm_legit_functional" else ()
    return dict(zip(new, running_statistics(call), strict=False))


# -- slices of fused projections ---------------------------------------------------------------------------------------


def take_apart(capture: Capture) -> list[CapturedCall]:
    """The calls with equal slices of a projection's result, and strided ones of rows, written as `reshape` and
    `select`."""
    fused = set(_fused(capture))
    calls: list[CapturedCall] = []
    for call in capture.calls:
        is_part = call.kind == "slice" and not fused.isdisjoint(call.refs())
        calls.extend(_part(call, capture) if is_part else _strided(call, capture))
    return calls


def _strided(call: CapturedCall, capture: Capture) -> list[CapturedCall]:
    """The calls for a slice that takes one position of each `step` of the first or the last axis. An axis between them,
    such as a sequence, may be one along which attention sees what is in front: it has to remain one dimension."""
    if call.target.name() != "aten::slice.Tensor" or not (shape := capture.tensors[call.refs()[0]].shape):
        return [call]
    at = call.argument("dim") % len(shape)
    if at not in (0, len(shape) - 1):
        return [call]
    size = shape[at]
    start, end, step = (call.argument(name) for name in ("start", "end", "step"))
    start, end = (n + size if n < 0 else n for n in (start or 0, size if end is None else end))
    if step == 1 or size % step or not 0 <= start < step or end <= size - step + start:
        return [call]

    def nth(x: torch.Tensor, *_: object) -> torch.Tensor:
        return x.reshape(*x.shape[:at], size // step, step, *x.shape[at + 1 :]).select(at + 1, start)

    return inline(nth, call, capture)


def _fused(capture: Capture) -> Iterator[str]:
    """The results of projections that are only read as equal parts of the last axis."""
    readers: dict[str, list[CapturedCall]] = {}
    for call in capture.calls:
        for value in dict.fromkeys(call.refs()):
            readers.setdefault(value, []).append(call)
    for call in capture.calls:
        op = find(call.target.name())
        if op is None or not op.projects:
            continue
        shape = capture.tensors[call.outputs[0]].shape
        bounds = [_bounds(reader, shape) for reader in readers.get(call.outputs[0], ())]
        if bounds and None not in bounds and len({size for _, size in filter(None, bounds)}) == 1:
            yield call.outputs[0]


def _bounds(call: CapturedCall, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Start and size of a slice, if it is one of several equal parts of the last axis."""
    if call.target.name() != "aten::slice.Tensor" or call.argument("dim") % len(shape) != len(shape) - 1:
        return None
    n = shape[-1]
    start, end = (n if i is None else min(i + n if i < 0 else i, n) for i in map(call.argument, ("start", "end")))
    start = 0 if call.argument("start") is None else start
    size = end - start
    aligned = 0 < size < n and n % size == 0 and start % size == 0
    return (start, size) if aligned and call.argument("step") == 1 else None


def _part(call: CapturedCall, capture: Capture) -> list[CapturedCall]:
    bounds = _bounds(call, capture.tensors[call.refs()[0]].shape)
    assert bounds is not None
    start, size = bounds

    def slice_of(x: torch.Tensor, *_: object) -> torch.Tensor:
        parts = x.reshape(*x.shape[:-1], x.shape[-1] // size, size)
        return parts.select(x.dim() - 1, start // size)

    return inline(slice_of, call, capture)


# -- buffers that the forward changes ----------------------------------------------------------------------------------


def check_statistics(capture: Capture) -> None:
    """Raises PlanError if a call reads running statistics after the batch norm that changes them."""
    changed: set[str] = set()
    for call in capture.calls:
        for name in sorted(changed.intersection(call.refs())) if call.kind != "batch_norm" else ():
            raise PlanError(StatisticsRead.of(call, buffer=name))
        changed.update(changed_statistics(call.kind, call.args))


def compute_updates(capture: Capture) -> None:
    """Gives each buffer's new value an operator of its own that reads the buffer, and so has a place in a plan.

    A new value that depends on inputs only, or is another buffer, would be made on no device, or on all. One that an
    operator sums would be made in parts, each an addend, where a plan cuts that operator in time: an operator of its
    own reads the whole sum.
    """
    level = {n: o in (Origin.WEIGHT, Origin.BUFFER) for n, o in capture.origins.items()}
    placed: set[str] = set()
    for call in capture.calls:
        if any(level.get(r, False) for r in call.refs()):
            level.update(dict.fromkeys(call.outputs, True))
            placed.update(call.outputs)
    makers = {name: call for call in capture.calls for name in call.outputs}
    for buffer, value in capture.updates.items():
        if value in placed and not _is_sum(capture, makers[value], buffer, value):
            placed.remove(value)  # a second buffer with this value has an operator of its own
            continue
        at = _place(capture, buffer, value)
        capture.calls[at:at] = _choice(capture, capture.calls[at - 1], buffer, value)
        capture.updates[buffer] = capture.calls[at + 1].name


def _is_sum(capture: Capture, maker: CapturedCall, buffer: str, value: str) -> bool:
    """Whether a new value may be a sum over positions of what its maker reads: it is smaller, or a single number."""
    shape = capture.tensors[value].shape
    read = (capture.tensors[name].shape for name in maker.refs() if name in capture.tensors)
    return any(math.prod(s) > math.prod(shape) for s in read) or not (shape or buffer in maker.refs())


def _place(capture: Capture, buffer: str, value: str) -> int:
    """The position for new calls: behind the call that makes the value, and the first one that reads the buffer."""
    makes = next((n for n, c in enumerate(capture.calls) if value in c.outputs), 0)
    return 1 + max(makes, next((n for n, c in enumerate(capture.calls) if buffer in c.refs()), 0))


def _choice(capture: Capture, near: CapturedCall, buffer: str, value: str) -> list[CapturedCall]:
    """Calls that choose between the new and the old value of a buffer, and always take the new one."""

    def copy(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
        always = aten.ones.default((), dtype=torch.bool, device=torch.device("cpu"))
        return torch.where(always, new, old)

    name = temporary(f"{near.name}_{buffer.replace('.', '_')}_next", capture, capture.tensors[buffer])
    return inline(copy, replace(near, name=name, outputs=(name,)), capture, (Ref(value), Ref(buffer)))
