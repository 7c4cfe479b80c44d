"""Rewrites captured calls in a smaller vocabulary: identities vanish, means become sums over the global count.

A plan computes the same as one device, not an average of averages. So the sum, whose parts add up, is an operator of
its own, and the count is that of the whole batch.
"""

import math
from dataclasses import replace

import torch

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.capture import Capture
from ssdsl.model.graph import Ref
from ssdsl.model.ops.families.move import REGROUPINGS
from ssdsl.model.rewrite.buffer_updates import check_statistics, compute_updates
from ssdsl.model.rewrite.calls import rename, rename_results
from ssdsl.model.rewrite.fused import take_apart
from ssdsl.model.rewrite.rules import rewritten

aten = torch.ops.aten
# calls that return what they are given if its shape and dtype stay the same
SAME = {*"alias clone contiguous lift_fresh_copy _to_copy to expand slice".split(), *REGROUPINGS}


def normalise(capture: Capture) -> Capture:
    """The same computation without identities, with losses and means as sums, and with views as `reshape`."""
    normal = replace(capture, calls=[], tensors=dict(capture.tensors))
    renamed: dict[str, str] = {}
    learns = {name for name, tensor in capture.tensors.items() if tensor.differentiable}
    for call in capture.calls:
        call = _joining(_on_its_device(rename(call, renamed)), normal)
        depends = not learns.isdisjoint(call.refs())
        if (same := _identity(call, normal, depends)) is not None:
            renamed[call.outputs[0]] = renamed.get(same, same)
        else:
            renamed.update(_statistics(call))
            learns.update(call.outputs if depends else ())
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
    if call.kind != "_native_batch_norm_legit_functional" or not call.argument("training"):
        return {}
    buffers = (call.argument("running_mean"), call.argument("running_var"))
    return {new: old.value for new, old in zip(call.outputs[3:], buffers, strict=True) if isinstance(old, Ref)}
