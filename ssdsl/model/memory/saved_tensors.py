"""The tensors that one call saves for its backward, as a value."""

import math
from collections.abc import Collection, Iterable

from ssdsl.model.graph import ITEMSIZE, Operator
from ssdsl.record import Record


class Extra(Record):
    """A saved tensor that is neither operand nor result: a mean, a mask, a copy in another order. In local bytes."""

    what: str
    size_bytes: int


class Saved(Record):
    """The tensors that one call saves for its backward: operands and results by their numbers, so that equal calls have
    equal ones. A value that is read twice is saved in both operands."""

    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    extras: tuple[Extra, ...] = ()

    def values(self, operator: Operator) -> tuple[str, ...]:
        """The saved values of a call, extras aside."""
        return (*(operator.inputs[n].value for n in self.inputs), *(operator.outputs[n].value for n in self.outputs))

    def __add__(self, other: "Saved") -> "Saved":
        return Saved(
            tuple(dict.fromkeys(self.inputs + other.inputs)),
            tuple(dict.fromkeys(self.outputs + other.outputs)),
            self.extras + other.extras,
        )


def operands_of(operator: Operator, values: Collection[str]) -> tuple[int, ...]:
    """The numbers of the operands that read these values."""
    return tuple([n for n, operand in enumerate(operator.inputs) if operand.value in values])


def extra(what: str, shape: Iterable[int], dtype: str, count: int = 1) -> Saved:
    """`count` further tensors of one shape, as one extra.

    >>> extra("mean and deviation", (4, 8), "bfloat16", 2)
    Saved(inputs=(), outputs=(), extras=(Extra(what='mean and deviation', size_bytes=128),))
    """
    return Saved(extras=(Extra(what, math.prod(shape) * count * ITEMSIZE.get(dtype, 4)),))
