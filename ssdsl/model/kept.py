"""What an operator keeps for its backward, as a value, and how a row of the table reads one call."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ssdsl.model.call import refs_in, schema_arguments
from ssdsl.model.graph import ITEMSIZE, Graph, Operand, Operator, Value
from ssdsl.model.storage import Storage

Axes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Extra:
    """A tensor that is neither operand nor result: a mean, a mask, a copy in another order.

    `axes` names, as an `Operand` does, the operator's dimensions of which each axis is made, so that its local size
    follows from theirs; each element stands `count` times.
    """

    what: str
    axes: Axes
    dtype: str
    count: int = 1

    def size_bytes(self, sizes: Sequence[int]) -> int:
        """Its bytes where the operator's dimensions have these (local) sizes."""
        return math.prod(sizes[d] for axis in self.axes for d in axis) * self.count * ITEMSIZE.get(self.dtype, 4)


@dataclass(frozen=True, slots=True)
class Saved:
    """The tensors that one call keeps for its backward: operands and results by the names of their values."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    extras: tuple[Extra, ...] = ()

    def __add__(self, other: "Saved") -> "Saved":
        return Saved(
            tuple(dict.fromkeys(self.inputs + other.inputs)),
            tuple(dict.fromkeys(self.outputs + other.outputs)),
            self.extras + other.extras,
        )


@dataclass(frozen=True, slots=True)
class Reader:
    """One call, its arguments by the names of its schema."""

    operator: Operator
    graph: Graph
    places: Mapping[str, Storage]
    split: frozenset[int]

    def named(self, row: str) -> Saved:
        """What a row of words keeps; a word of a tensor that is not given keeps nothing."""
        inputs, outputs = [], []
        for word in row.split():
            name, _, condition = word.partition("/")
            if condition and not self.learns(condition):
                continue
            if name.startswith("result"):
                outputs.append(self.operator.outputs[int(name.removeprefix("result") or 0)].value)
            else:
                inputs += [o.value for o in self.operands(name)]
        return Saved(tuple(dict.fromkeys(inputs)), tuple(dict.fromkeys(outputs)))

    def argument(self, name: str) -> Any:
        """An argument by its parameter's name, or its default."""
        target = self.operator.args[0]
        defaults = {p.name: p.default_value for p in schema_arguments(target)}
        return dict(self._given()).get(name, defaults.get(name))

    def operands(self, name: str) -> tuple[Operand, ...]:
        """The tensors given for a parameter: one, several for a list, none."""
        left = iter(self.operator.inputs)  # in the order of the arguments
        found = {parameter: tuple(islice(left, len(list(refs_in(a))))) for parameter, a in self._given()}
        return found.get(name, ())

    def _given(self) -> list[tuple[str, Any]]:
        target, *given = self.operator.args
        names = (p.name for p in schema_arguments(target))
        return [*zip(names, given, strict=False), *self.operator.kwargs]

    def operand(self, name: str) -> Operand:
        (found,) = self.operands(name)
        return found

    def value(self, name: str) -> Value:
        return self.graph.values[self.operand(name).value]

    def learns(self, name: str) -> bool:
        """Whether the tensors given for a parameter require a gradient."""
        return any(self.graph.values[o.value].differentiable for o in self.operands(name))
