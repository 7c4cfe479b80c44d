"""The text of functions: operators and conversions as lines, with names that depend on the structure alone.

Layers that compute the same get the same text, and so one function.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ssdsl.codegen.expressions import assignment, expression
from ssdsl.codegen.identifiers import Identifiers
from ssdsl.codegen.steps import conversion_text
from ssdsl.codegen.weight_side import Side
from ssdsl.lower.cuts import OperatorCut
from ssdsl.lower.schedule import Conversion, TimeIndex
from ssdsl.model.graph import Operator

RESERVED = ("w", "weights", "prefix", "device", "torch", "aten", "F")


@dataclass(slots=True)
class Body:
    """Lines of Python over local names, and what they read from outside and make."""

    group: Callable[[tuple[str, ...]], str]
    cuts: Callable[[Operator], tuple[OperatorCut, ...]]
    time: tuple[TimeIndex, ...]
    weights: Callable[[str], str | None]
    names: Identifiers
    updates: dict[str, str]  # value -> the buffer that takes it
    in_place: dict[str, tuple[bool, bool]]  # conversion -> may it change the value, the gradient
    sides: dict[str, tuple[Side, ...]]  # the operators whose backward comes in halves
    only_weights: frozenset[str]  # the outputs that follow from weights alone, there
    lines: list[str] = field(default_factory=list)
    outside: dict[str, str] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)

    def read(self, value: str) -> str:
        """The local name of a value; one that was not made here comes from outside."""
        if value in self.made:
            return self.made[value]
        if (weight := self.weights(value)) is not None:
            return weight
        if value not in self.outside:
            self.outside[value] = self.names.name(f"in {value}", f"x{len(self.outside) or ''}")
        return self.outside[value]

    def output(self, value: str) -> str:
        """A value that leaves the block; in halves, a gradient that leads to weights alone waits for the second."""
        name = self.read(value)
        return f"halves(lambda x: x, (), ({name},))" if value in self.only_weights else name

    def make(self, value: str, word: str) -> str:
        self.made[value] = self.names.unused(word)
        return self.made[value]

    def add(self, item: Operator | Conversion, reads: Sequence[str] = (), used: frozenset[str] = frozenset()) -> None:
        """Appends the line of an operator (`reads` are its values) or of a conversion."""
        if isinstance(item, Conversion):
            may = self.in_place[item.result]
            text = conversion_text(item, self.read(item.value), self.time, self.group, may)
            self.lines.append(f"{self.make(item.result, self._word(item))} = {text}")
            return
        text = self._call(item, [self.read(r) for r in reads])
        kept = used | self.updates.keys()
        outputs = [self.make(o.value, item.kind.strip("_")) if o.value in kept else "_" for o in item.outputs]
        self.lines.append(f"{assignment(item, outputs)} = {text}")
        for value in (o.value for o in item.outputs if o.value in self.updates):
            self.lines.append(f"{self.read(self.updates[value])}.copy_({self.made[value]})")

    def _call(self, operator: Operator, reads: list[str]) -> str:
        """The operator's expression; in halves, as a function of the operands that have gradients."""
        cuts = self.cuts(operator)
        sides = self.sides.get(operator.name)
        if sides is None:
            return expression(operator, reads, cuts, group=self.group)
        own = re.findall(r"\w+", expression(operator, ["_"] * len(reads), cuts, group=self.group))
        formals, words = _parameters(reads, sides, own)
        given = [
            _tuple(r for r, s in zip(reads, sides, strict=True) if s is side) for side in (Side.ACTIVATION, Side.WEIGHT)
        ]
        text = expression(operator, words, cuts, group=self.group)
        return f"halves(lambda {', '.join(formals)}: {text}, {', '.join(given)})"

    def _word(self, item: Conversion) -> str:
        return self.made.get(item.value, "").rstrip("_0123456789") or "x"


def _parameters(reads: list[str], sides: tuple[Side, ...], taken: Sequence[str]) -> tuple[list[str], list[str]]:
    """The parameters of a function of the operands that have gradients, activations first; and the operands in it.

    A weight is called by the last word of its name, if the function's text has not `taken` it.
    """
    names = Identifiers((*RESERVED, *taken))
    for read in (r for r, s in zip(reads, sides, strict=True) if s is Side.FIXED):
        names.unused(read)
    words = list(reads)
    formals = []
    for side in (Side.ACTIVATION, Side.WEIGHT):
        for k in (k for k, s in enumerate(sides) if s is side):
            word = re.sub(r".*[.\[]|\W", "", reads[k].removesuffix("]"))
            words[k] = names.name(f"operand {k}", word if side is Side.WEIGHT else "x")
            formals.append(words[k])
    return formals, words


def _tuple(items: Iterable[str]) -> str:
    inside = list(items)
    return f"({', '.join(inside)}{',' if len(inside) == 1 else ''})"
