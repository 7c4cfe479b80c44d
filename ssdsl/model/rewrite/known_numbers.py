"""Computes small tensors that depend on no input and no weight."""

import math
from collections.abc import Mapping

import torch

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.capture import Capture
from ssdsl.model.graph import replace_refs
from ssdsl.runtime.layout.cut import contiguous

LARGEST = 1 << 20  # elements of a constant that is computed


def known_numbers(value: str, calls: dict[str, CapturedCall], capture: Capture) -> torch.Tensor | None:
    """The numbers of a constant of at most LARGEST elements; None for any other tensor.

    `calls` has the maker of each value, in execution order.
    """
    behind = {value}
    for name, call in reversed(calls.items()):
        if name in behind:
            behind.update(call.refs())
    known = {v: capture.constants[v] for v in behind if v in capture.constants and not capture.constants[v].is_meta}
    for name, call in calls.items():
        if name in behind:
            is_constant = known.keys() >= set(call.refs()) and _is_small(name, call, capture)
            found = with_numbers(call, known) if is_constant else None
            if found is None:
                return None
            known[name] = found
    return known.get(value)


def _is_small(name: str, call: CapturedCall, capture: Capture) -> bool:
    """Whether a value is the only result of a call that draws nothing, and has few elements."""
    draws = torch.Tag.nondeterministic_seeded in call.target.tags
    return not draws and len(call.outputs) == 1 and math.prod(capture.tensors[name].shape) <= LARGEST


def with_numbers(call: CapturedCall, known: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """The result of a call on these numbers, if it is one tensor."""
    if call.orders:
        known = {**known, **{r: contiguous(known[r], order) for r, order in zip(call.refs(), call.orders, strict=True)}}
    args, kwargs = replace_refs((call.args, call.kwargs), known.__getitem__)
    found = call.target(*args, **{word: item for word, item in kwargs.items() if word != "device"})
    return found if isinstance(found, torch.Tensor) else None
