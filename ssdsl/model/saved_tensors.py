"""The tensors that one call saves for its backward, as a value."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ssdsl.model.graph import ITEMSIZE, Operator


@dataclass(frozen=True, slots=True)
class Extra:
    """A saved tensor that is neither operand nor result: a mean, a mask, a copy in another order. Local bytes."""

    what: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Saved:
    """The tensors that one call saves for its backward: operands and results by the names of their values."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    extras: tuple[Extra, ...] = ()

    def renamed(self, like: Operator, operator: Operator) -> "Saved":
        """What an operator saves, where this is what one `like` it does: an equal call."""
        if not (self.inputs or self.outputs):
            return self
        names = dict(zip(like.values, operator.values, strict=True))
        return Saved(tuple(names[n] for n in self.inputs), tuple(names[n] for n in self.outputs), self.extras)

    def __add__(self, other: "Saved") -> "Saved":
        return Saved(
            tuple(dict.fromkeys(self.inputs + other.inputs)),
            tuple(dict.fromkeys(self.outputs + other.outputs)),
            self.extras + other.extras,
        )


def extra(what: str, shape: Iterable[int], dtype: str, count: int = 1) -> Saved:
    """As many further tensors of one shape.

    >>> extra("mean and deviation", (4, 8), "bfloat16", 2)
    Saved(inputs=(), outputs=(), extras=(Extra(what='mean and deviation', size_bytes=128),))
    """
    return Saved(extras=(Extra(what, math.prod(shape) * count * ITEMSIZE.get(dtype, 4)),))
