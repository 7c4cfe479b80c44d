"""The tensors that one call saves for its backward, as a value."""

import math
from collections.abc import Iterable

from ssdsl.model.graph import ITEMSIZE, Operator
from ssdsl.record import Record


class Extra(Record):
    """A saved tensor that is neither operand nor result: a mean, a mask, a copy in another order. In local bytes."""

    what: str
    size_bytes: int


class Saved(Record):
    """The tensors that one call saves for its backward: operands and results by the names of their values."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    extras: tuple[Extra, ...] = ()

    def renamed(self, like: Operator, operator: Operator) -> "Saved":
        """The tensors that `operator` saves, if these are those that an equal call, `like`, saves."""
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
    """`count` further tensors of one shape, as one extra.

    >>> extra("mean and deviation", (4, 8), "bfloat16", 2)
    Saved(inputs=(), outputs=(), extras=(Extra(what='mean and deviation', size_bytes=128),))
    """
    return Saved(extras=(Extra(what, math.prod(shape) * count * ITEMSIZE.get(dtype, 4)),))
