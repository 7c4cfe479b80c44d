"""Facts that torch showed of a call at capture: memory that may be overwritten, and tensors saved for backward.

Sizes of saved tensors are products of operands' axes, so that they hold for parts too: a kernel sees only the sizes of
axes.
"""

import math
from collections.abc import Sequence

from ssdsl.model.graph import Operator
from ssdsl.model.memory.saved_tensors import Extra, Saved, operands_of
from ssdsl.record import Record

OWN_CALL = ("", "conv_part", "conv_transpose_part")  # kernels of parts that run the operator's own call
Shape = tuple[int, ...]
Place = tuple[int, int]  # the number of an operand, inputs before outputs, and of one of its axes


class ExtraShape(Record):
    """A saved tensor that is neither operand nor result, or one that a kernel of parts sends: `size_bytes` times the
    sizes of `axes`. `what` names it, or the collective."""

    what: str
    size_bytes: int
    axes: tuple[Place, ...]

    def bytes_at(self, shapes: Sequence[Shape]) -> int:
        """Its bytes for operands of these shapes."""
        return self.size_bytes * math.prod(shapes[o][a] for o, a in self.axes)


class SavedShapes(Record):
    """The tensors that a call saves for backward: inputs and outputs by their numbers, and other tensors; for a kernel
    of parts also those that it sends in `forward` and `backward`. The number of parts counts as one more operand."""

    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    extras: tuple[ExtraShape, ...] = ()
    forward: tuple[ExtraShape, ...] = ()
    backward: tuple[ExtraShape, ...] = ()

    def at(self, shapes: Sequence[Shape], operator: Operator) -> Saved:
        """The tensors that a part of an operator saves, whose operands have these shapes."""
        return Saved(
            operands_of(operator, {operator.inputs[i].value for i in self.inputs}),
            self.outputs,
            tuple(Extra(e.what, e.bytes_at(shapes)) for e in self.extras),
        )


class SavedByParts(Record):
    """The tensors that parts of any size save; `of_one` has exceptions, for parts in which these axes have size 1. It
    is known only of parts in which the axes `held` have these sizes."""

    saved: SavedShapes
    of_one: tuple[tuple[tuple[Place, ...], SavedShapes], ...] = ()
    held: tuple[tuple[Place, int], ...] = ()

    def at(self, shapes: Sequence[Shape]) -> SavedShapes | None:
        """The tensors saved for these shapes; None if that is not known, or several exceptions apply and differ."""
        if any(shapes[operand][axis] != size for (operand, axis), size in self.held):
            return None
        found = {saved for axes, saved in self.of_one if all(shapes[operand][axis] == 1 for operand, axis in axes)}
        return min(found, default=self.saved, key=id) if len(found) < 2 else None


class Observed(Record):
    """The facts that torch showed of a call.

    `results`: the numbers of results that a collective may overwrite, as they are new tensors that autograd does not
    keep. `gradients`: the numbers of values read, in the order in which the call first reads them, whose gradients may
    be overwritten. Both are None if the call does not run on tensors without numbers. `whole`: the tensors that the
    unsplit call saves. `parts`: those that parts save, None if their sizes are no products of axes.
    `kernel`: the same for the kernel that combines parts.
    """

    results: frozenset[int] | None = None
    gradients: frozenset[int] | None = None
    whole: SavedShapes | None = None
    parts: SavedByParts | None = None
    kernel: SavedByParts | None = None


def overwritable(operator: Operator) -> tuple[frozenset[str], frozenset[str]]:
    """The names of results that a collective may change in place, and of values read whose gradients it may: new
    tensors that autograd does not keep.

    If the call does not run on tensors without numbers, its row decides (`fresh`).
    """
    names = tuple(dict.fromkeys(o.value for o in operator.inputs))
    outputs = tuple(o.value for o in operator.outputs)
    found = operator.observed
    if found is None or found.results is None or found.gradients is None:
        return (frozenset(outputs), frozenset(names)) if operator.row.fresh else (frozenset(), frozenset())
    return frozenset(outputs[i] for i in found.results), frozenset(names[i] for i in found.gradients)
