"""Constants of a capture, which depend on no input and no weight: their numbers, and where they are repeated.

Models of `transformers` repeat a mask for every sample and then choose numbers by it. The numbers have the size of the
batch, and a part computes them for each micro-batch. Chosen first and repeated then (`expand_last`), they are a
constant, which is computed once, and a view of it.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.capture import Capture
from ssdsl.model.graph import Origin, replace_refs
from ssdsl.model.rewrite.calls import inline, rename
from ssdsl.record import replace
from ssdsl.runtime.layout.cut import contiguous

aten = torch.ops.aten
EXPAND = aten.expand.default
CHOICES = (aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
UNTAGGED = (aten.__and__.Tensor, aten.__or__.Tensor, aten.__xor__.Tensor, *CHOICES)  # pointwise too
LARGEST = 1 << 20  # elements of a constant that is computed


def known_numbers(
    value: str, calls: dict[str, CapturedCall], capture: Capture, most: int = LARGEST
) -> torch.Tensor | None:
    """The numbers of a constant of at most `most` elements; None for any other tensor.

    `calls` has the maker of each value, in execution order.
    """
    behind = {value}
    for name, call in reversed(calls.items()):
        if name in behind:
            behind.update(call.refs())
    known = {v: capture.constants[v] for v in behind if v in capture.constants and not capture.constants[v].is_meta}
    makers = {name: call for name, call in calls.items() if name in behind}
    if behind - makers.keys() - known.keys() or not all(_is_small(n, c, capture, most) for n, c in makers.items()):
        return None  # before anything is computed
    for name, call in makers.items():
        found = with_numbers(call, known) if known.keys() >= set(call.refs()) else None
        if found is None:
            return None
        known[name] = found
    return known.get(value)


def _is_small(name: str, call: CapturedCall, capture: Capture, most: int) -> bool:
    """Whether a value is the only result of a call that draws nothing, and has at most so many elements."""
    draws = torch.Tag.nondeterministic_seeded in call.target.tags
    return not draws and len(call.outputs) == 1 and math.prod(capture.tensors[name].shape) <= most


def with_numbers(call: CapturedCall, known: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """The result of a call on these numbers, if it is one tensor."""
    if call.orders:
        known = {**known, **{r: contiguous(known[r], order) for r, order in zip(call.refs(), call.orders, strict=True)}}
    args, kwargs = replace_refs((call.args, call.kwargs), known.__getitem__)
    found = call.target(*args, **{word: item for word, item in kwargs.items() if word != "device"})
    return found if isinstance(found, torch.Tensor) else None


# -- repeated last -----------------------------------------------------------------------------------------------------


def expand_last(capture: Capture) -> Capture:
    """The capture with such calls in front of the `expand`, which then may be unread."""
    found = replace(capture, calls=[], tensors=dict(capture.tensors))
    constants = {name for name, origin in capture.origins.items() if origin is Origin.CONSTANT}
    repeats: dict[str, str] = {}  # by the result of an `expand`, the constant that it repeats
    for call in capture.calls:
        calls = [call]
        if constants.issuperset(call.refs()):
            if not repeats.keys().isdisjoint(call.refs()) and is_pointwise(call):
                calls = _expanding(rename(call, repeats), found) or calls
            constants.update(o for made in calls for o in made.outputs)
            if calls[-1].target is EXPAND:
                of = calls[-1].refs()[0]
                repeats[calls[-1].outputs[0]] = repeats.get(of, of)
        found.calls += calls
    return found


def _expanding(call: CapturedCall, capture: Capture) -> list[CapturedCall]:
    """A call of constants that are not repeated, and the `expand` of its result; nothing if another operand has all
    elements, if the result would have another dtype, or if there are several or it asks for an order in memory."""
    if len(call.outputs) > 1 or call.orders:
        return []
    tensor = capture.tensors[call.outputs[0]]

    def rule(*args: Any, **kwargs: Any) -> Any:
        made = call.target(*args, **kwargs)
        is_same = str(made.dtype).removeprefix("torch.") == tensor.dtype
        return made.expand(tensor.shape) if is_same and tuple(made.shape) != tensor.shape else NotImplemented

    calls = inline(rule, call, capture)
    return calls if len(calls) == 2 else []


def is_pointwise(call: CapturedCall) -> bool:
    """Whether each element of a call's result depends on those of its operands in the same place."""
    return torch.Tag.pointwise in call.target.tags or call.target in UNTAGGED
