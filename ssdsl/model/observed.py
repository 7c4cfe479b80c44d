"""What torch showed of a call when it was captured: memory that may be overwritten, and tensors saved for backward.

Sizes are kept as axes of operands, so that they hold for parts: a kernel sees the sizes of axes and no more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ssdsl.model.saved_tensors import Extra, Saved

Shape = tuple[int, ...]
Place = tuple[int, int]  # an operand of an operator, of its inputs and then of its outputs, and an axis of it


@dataclass(frozen=True, slots=True)
class ExtraShape:
    """A saved tensor that is neither operand nor result: so many bytes, times the sizes of these axes."""

    what: str
    size_bytes: int
    axes: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class SavedShapes:
    """What a call saves for backward: inputs and outputs by their numbers, and other tensors."""

    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    extras: tuple[ExtraShape, ...] = ()

    def at(self, shapes: Sequence[Shape], inputs: Sequence[str], outputs: Sequence[str]) -> Saved:
        """What parts save whose operands have these shapes and names."""
        return Saved(
            tuple(dict.fromkeys(inputs[i] for i in self.inputs)),
            tuple(outputs[i] for i in self.outputs),
            tuple(Extra(e.what, e.size_bytes * math.prod(shapes[o][a] for o, a in e.axes)) for e in self.extras),
        )


@dataclass(frozen=True, slots=True)
class SavedByParts:
    """The same for all sizes; `of_one` where these axes have size 1 in a part."""

    saved: SavedShapes
    of_one: tuple[tuple[tuple[Place, ...], SavedShapes], ...] = ()

    def at(self, shapes: Sequence[Shape]) -> SavedShapes | None:
        """What holds for these shapes; None where several axes are 1 for which unlike things hold."""
        found = {saved for axes, saved in self.of_one if all(shapes[operand][axis] == 1 for operand, axis in axes)}
        return min(found, default=self.saved, key=id) if len(found) < 2 else None


@dataclass(frozen=True, slots=True)
class Observed:
    """What torch showed of a call.

    `results`: numbers of results that a collective may overwrite, as they are new tensors that autograd does not keep.
    `gradients`: of values read, in the order in which the call first reads them, those whose gradients may be. None
    where the call does not run on tensors without numbers. `whole` is what it saves, of all sizes; `parts` what parts
    save, None where that is no product of axes.
    """

    results: frozenset[int] | None = None
    gradients: frozenset[int] | None = None
    whole: SavedShapes | None = None
    parts: SavedByParts | None = None
