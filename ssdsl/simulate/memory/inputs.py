"""The memory of inputs, which a device holds for a whole step: its part of the batch, and values of its prologues.

The seed and the count of a step are a few bytes, and are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from ssdsl.ir.comm import Narrow, Step
from ssdsl.ir.function import OpPart, Prologue, Reshard, results_of
from ssdsl.ir.program import Role
from ssdsl.ir.value import Name, Var
from ssdsl.model.graph import Origin
from ssdsl.simulate.price.collectives import ProgramIndex, size_bytes

Sizes = dict[str, int]  # bytes by storage


@dataclass(frozen=True, slots=True)
class Inputs:
    """The bytes of inputs of a program's roles."""

    facts: ProgramIndex

    def of(self, role: Role) -> int:
        """The bytes on one device of a role. Prologues of the same devices share values of one name."""
        found: Sizes = {}
        for prologue in self.facts.program.prologues_of(role):
            found.update(self._given(prologue))
            found.update(self._made(prologue))
        return sum(found.values())

    def _given(self, prologue: Prologue) -> Iterator[tuple[str, int]]:
        """Yields the name and bytes of each input that is loaded, and of the storage of each constant that is read."""
        values = self.facts.program.graph.values
        for var in prologue.given:
            match values[var.name.value].origin:
                case Origin.SEED:
                    pass
                case Origin.OPERATOR | Origin.CONSTANT:
                    owner = values[self.facts.places[var.name.value].root]
                    yield owner.name, prod(owner.shape) * owner.itemsize
                case _:
                    yield str(var.name), size_bytes(var)

    def _made(self, prologue: Prologue) -> Iterator[tuple[str, int]]:
        """Yields the name and bytes of each result that is not a view of a value that is there already."""
        here = {v.name for v in prologue.given} | {v.name for i in prologue.body for v in results_of(i)}
        for instr in prologue.body:
            for var in results_of(instr):
                root = Name(self.facts.places[var.name.value].root)
                match instr:
                    case Reshard() if all(_is_view(s, var) for s in instr.forward):
                        pass
                    case OpPart() if root != var.name and root in here:
                        pass
                    case _:
                        yield str(var.name), size_bytes(var)


def _is_view(step: Step, result: Var) -> bool:
    """Whether the result of a step is a view of its operand, one run of its memory; else it is a copy."""
    if not isinstance(step, Narrow):
        return False
    before, at = result.shape[: step.target.dim], step.target.at
    return step.target.outer == 1 and prod(s.known for s in before) == 1 and (at is None or max(map(len, at)) == 1)
