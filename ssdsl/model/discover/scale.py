"""Small shapes for a large call: sizes that can shrink without the operator minding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

from ssdsl.model.discover.draws import Shape
from ssdsl.model.discover.trial import Fails, Trial

LARGEST = 1 << 15  # elements of all tensors in an experiment
SMALL = 8  # sizes up to this stay
SCALES = (5, 11)  # the smallest size in each of the two scales


@dataclass(frozen=True, slots=True)
class Setting:
    """The shapes of the inputs and of the results."""

    shapes: tuple[Shape, ...]
    made: tuple[Shape, ...]

    @property
    def elements(self) -> int:
        return sum(prod(s) for s in (*self.shapes, *self.made))


def settings(trial: Trial, call: Setting, dtypes: Sequence[torch.dtype]) -> list[Setting]:
    """The call's own shapes where they are small, else two scales of them. Raises Fails where it cannot be small."""
    if call.elements <= LARGEST:
        return [call]
    return [_scaled(trial, call, dtypes, first) for first in SCALES]


def _scaled(trial: Trial, call: Setting, dtypes: Sequence[torch.dtype], first: int) -> Setting:
    """All sizes shrink, or else as many as can: those of which the results' sizes follow."""
    sizes = sorted({n for s in (*call.shapes, *call.made) for n in s if n > SMALL}, reverse=True)
    new = {n: first + i for i, n in enumerate(reversed(sizes)) if n > first + i}
    chosen: dict[int, int] = {}
    for step in (new, *({n: new[n]} for n in sizes if n in new)):
        tried = chosen | step
        setting = Setting(*(tuple(_mapped(s, tried) for s in shapes) for shapes in (call.shapes, call.made)))
        if _fits(trial, setting, dtypes):
            chosen = tried
            if setting.elements <= LARGEST:
                return setting
    raise Fails("it is too large to try")


def _mapped(shape: Shape, sizes: Mapping[int, int]) -> Shape:
    return tuple(sizes.get(n, n) for n in shape)


def _fits(trial: Trial, setting: Setting, dtypes: Sequence[torch.dtype]) -> bool:
    """Whether the call makes these results of these inputs, on tensors without numbers."""
    given = [torch.empty(s, dtype=d, device="meta") for s, d in zip(setting.shapes, dtypes, strict=True)]
    try:
        return tuple(tuple(y.shape) for y in trial.forward(given)) == setting.made
    except Fails:
        return False
