"""The numbers of masks: constants of a capture, whole where they are short, and in blocks of rows."""

import math

import torch

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.capture import Capture
from ssdsl.model.rewrite.constants import LARGEST, is_pointwise, known_numbers, with_numbers

LONGEST = 1 << 13  # queries; all elements are computed of masks that are not longer
BLOCK = 1 << 24  # elements of a mask that are computed together
POSITIONS = 1 << 25  # elements of what a mask compares, such as positions of all samples: 16 million tokens and more
aten = torch.ops.aten
FILLED = {aten.zeros.default: 0, aten.ones.default: 1}


class MaskNumbers:
    """The numbers of a capture's constants, each computed once."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.calls = capture.makers()
        self.numbers: dict[str, torch.Tensor | None] = {}

    def shape(self, value: str) -> tuple[int, ...]:
        return tuple(self.capture.tensors[value].shape)

    def part(self, value: str, rows: slice | None) -> torch.Tensor | None:
        """Rows (along the axis before the last) of a constant, or without `rows` its one number; axes along which it
        does not vary may have size one. None if a value is no such constant."""
        call = self.calls.get(value)
        if math.prod(self.shape(value)) <= LARGEST or (call is not None and not _is_by_rows(call)):
            found = self._known(value)
            if found is None or rows is None:
                return found if found is not None and found.numel() == 1 else None
            return found[..., rows, :] if found.dim() > 1 and found.shape[-2] > 1 else found
        if call is None:
            return None
        if call.target is aten.full.default or call.target in FILLED:
            number = FILLED[call.target] if call.target in FILLED else call.args[1]
            return torch.full([], number, dtype=getattr(torch, self.capture.tensors[value].dtype))
        given = {r: self.part(r, rows) for r in call.refs()}
        tensors = {r: t for r, t in given.items() if t is not None}
        if len(tensors) < len(given):
            return None
        return tensors[call.refs()[0]] if call.target is aten.expand.default else with_numbers(call, tensors)

    def _known(self, value: str) -> torch.Tensor | None:
        if value not in self.numbers:
            known = known_numbers(value, self.calls, self.capture, POSITIONS)
            self.numbers[value] = None if known is None else _alike(known)
        return self.numbers[value]


def _is_by_rows(call: CapturedCall) -> bool:
    """Whether rows of a call's result follow from the same rows of its operands, or are all alike."""
    filled = call.target is aten.full.default or call.target in FILLED
    return len(call.outputs) == 1 and (filled or call.target is aten.expand.default or is_pointwise(call))


def _alike(numbers: torch.Tensor) -> torch.Tensor:
    """The numbers, with size one along axes along which they do not vary."""
    for axis in range(numbers.dim()):
        first = numbers.narrow(axis, 0, min(1, numbers.shape[axis]))
        if torch.equal(first.expand_as(numbers), numbers):
            numbers = first.clone()  # a view would keep the memory of all
    return numbers
