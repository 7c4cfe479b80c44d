"""Chooses small shapes for a large call: sizes that can shrink so that the operator still accepts them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

from ssdsl.model.discover.draws import Shape
from ssdsl.model.discover.trial import Fails, Trial

OWN = 1 << 15  # elements; a call whose tensors have not more is tried in its own shapes
LARGEST = 1 << 17  # elements of all tensors of a call in smaller shapes
SMALL = 8  # sizes up to this stay
SCALES = (5, 11)  # the smallest size in each of the two scales


@dataclass(frozen=True, slots=True)
class TrialShapes:
    """The shapes of the inputs and of the results."""

    shapes: tuple[Shape, ...]
    made: tuple[Shape, ...]

    @property
    def elements(self) -> int:
        return sum(prod(s) for s in (*self.shapes, *self.made))


def settings(trial: Trial, call: TrialShapes, dtypes: Sequence[torch.dtype]) -> list[list[TrialShapes]]:
    """The call's own shapes if they are small, else two scales of them; for each scale, settings to try in order."""
    if call.elements <= OWN:
        return [[call]]
    return [[s for s in _scaled(trial, call, dtypes, first) if s.elements <= LARGEST] for first in SCALES]


def _scaled(trial: Trial, call: TrialShapes, dtypes: Sequence[torch.dtype], first: int) -> Iterator[TrialShapes]:
    """Settings with all sizes smaller; then with all sizes smaller that may be so on meta tensors; then with all of
    these but one.

    The last are needed because an operator may accept sizes on meta tensors that it cannot compute with.
    """
    sizes = sorted({n for s in (*call.shapes, *call.made) for n in s if n > SMALL}, reverse=True)
    new = {n: first + i for i, n in enumerate(reversed(sizes)) if n > first + i}

    def setting(chosen: Mapping[int, int]) -> TrialShapes:
        return TrialShapes(*(tuple(_mapped(s, chosen) for s in shapes) for shapes in (call.shapes, call.made)))

    if _fits(trial, setting(new), dtypes):
        yield setting(new)
    able: dict[int, int] = {}
    for size in (n for n in sizes if n in new):
        if _fits(trial, setting(able | {size: new[size]}), dtypes):
            able[size] = new[size]
    yield setting(able)
    for size in able:
        yield setting({n: m for n, m in able.items() if n != size})


def _mapped(shape: Shape, sizes: Mapping[int, int]) -> Shape:
    return tuple(sizes.get(n, n) for n in shape)


def _fits(trial: Trial, setting: TrialShapes, dtypes: Sequence[torch.dtype]) -> bool:
    """Whether the call, on meta tensors, makes results of these shapes from inputs of these shapes."""
    given = [torch.empty(s, dtype=d, device="meta") for s, d in zip(setting.shapes, dtypes, strict=True)]
    try:
        return tuple(tuple(y.shape) for y in trial.forward(given)) == setting.made
    except Fails:
        return False
