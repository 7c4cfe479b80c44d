"""Computes small tensors that depend on no input and no weight."""

import math
from collections.abc import Mapping

import torch

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.capture import Capture
from ssdsl.model.graph import replace_refs
from ssdsl.runtime.layout.cut import contiguous

LARGEST = 1 << 20  # elements of a constant that is computed


def known_numbers(value: str, calls: Mapping[str, CapturedCall], capture: Capture) -> torch.Tensor | None:
    """The numbers of a constant of at most LARGEST elements; None for any other tensor.

    `calls` has the maker of each value, in execution order.
    """
    behind = _behind(value, calls, capture)
    if behind is None:
        return None
    known = {v: capture.constants[v] for v in behind if v in capture.constants}
    for name, call in calls.items():
        if name in behind and name not in known:
            found = with_numbers(call, known)
            if found is None:
                return None
            known[name] = found
    return known[value]


def _behind(value: str, calls: Mapping[str, CapturedCall], capture: Capture) -> set[str] | None:
    """A value and all values that it depends on; None if one of them is no small constant."""
    found, open_ = {value}, [value]
    while open_:
        name = open_.pop()
        if name in capture.constants:
            if capture.constants[name].is_meta:
                return None
        elif not _is_small(name, calls, capture):
            return None
        else:
            new = [r for r in calls[name].refs() if r not in found]
            found.update(new)
            open_ += new
    return found


def _is_small(name: str, calls: Mapping[str, CapturedCall], capture: Capture) -> bool:
    """Whether a value is the only result of a call that draws nothing, and has few elements."""
    call = calls.get(name)
    if call is None or math.prod(capture.tensors[name].shape) > LARGEST or len(call.outputs) > 1:
        return False
    return torch.Tag.nondeterministic_seeded not in call.target.tags


def with_numbers(call: CapturedCall, known: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """The result of a call on these numbers, if it is one tensor."""

    if call.orders:
        known = {**known, **{r: contiguous(known[r], order) for r, order in zip(call.refs(), call.orders, strict=True)}}
    args, kwargs = replace_refs((call.args, call.kwargs), known.__getitem__)
    found = call.target(*args, **{word: item for word, item in kwargs.items() if word != "device"})
    return found if isinstance(found, torch.Tensor) else None
