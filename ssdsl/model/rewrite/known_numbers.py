"""The numbers of small tensors that depend on no input and no weight."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from ssdsl.model.call import Call
from ssdsl.model.capture import Capture
from ssdsl.model.graph import Ref

LARGEST = 1 << 20  # elements of a constant that is looked at


def known_numbers(value: str, calls: Mapping[str, Call], capture: Capture) -> torch.Tensor | None:
    """The numbers of a constant of at most LARGEST elements; None where a tensor is none. `calls` by their outputs."""
    if value in capture.constants:
        return capture.constants[value] if not capture.constants[value].is_meta else None
    call = calls.get(value)
    if call is None or math.prod(capture.tensors[value].shape) > LARGEST or len(call.outputs) > 1:
        return None
    if torch.Tag.nondeterministic_seeded in call.target.tags:
        return None
    given = {r: known_numbers(r, calls, capture) for r in call.refs()}
    known = {r: t for r, t in given.items() if t is not None}
    return with_numbers(call, known) if len(known) == len(given) else None


def with_numbers(call: Call, known: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """What a call gives for these numbers, if it is one tensor."""

    def numbers(item: Any) -> Any:
        if isinstance(item, tuple):
            return tuple(map(numbers, item))
        return known[item.value] if isinstance(item, Ref) else item

    kwargs = {k: numbers(v) for k, v in call.kwargs.items() if k != "device"}
    found = call.target(*map(numbers, call.args), **kwargs)
    return found if isinstance(found, torch.Tensor) else None
