"""What lies on a device for a whole step: its part of the batch, and what its prologues make of that.

The numbers of a step (a seed and its count) are a few bytes, and left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from ssdsl.ir.comm import Narrow, Step
from ssdsl.ir.function import Op, Prologue, Reshard, results_of
from ssdsl.ir.program import Role
from ssdsl.ir.value import Name, Var
from ssdsl.model.graph import Origin
from ssdsl.simulate.collectives import Facts, size_bytes

Sizes = dict[str, int]  # bytes by storage


@dataclass(frozen=True, slots=True)
class Inputs:
    """The bytes of inputs of a program's roles."""

    facts: Facts

    def of(self, role: Role) -> int:
        """Of one device. Prologues of the same devices share what they have under one name."""
        found: Sizes = {}
        for prologue in self.facts.program.prologues_of(role):
            found.update(self._given(prologue))
            found.update(self._made(prologue))
        return sum(found.values())

    def _given(self, prologue: Prologue) -> Iterator[tuple[str, int]]:
        """What is loaded, and of the constants those that are read, by the storage that they are views of."""
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
        """The results that are no views of what is there already."""
        here = {v.name for v in prologue.given} | {v.name for i in prologue.body for v in results_of(i)}
        for instr in prologue.body:
            for var in results_of(instr):
                root = Name(self.facts.places[var.name.value].root)
                match instr:
                    case Reshard() if all(_is_view(s, var) for s in instr.forward):
                        pass
                    case Op() if root != var.name and root in here:
                        pass
                    case _:
                        yield str(var.name), size_bytes(var)


def _is_view(step: Step, result: Var) -> bool:
    """Whether what a step leaves lies in what it is given: one run of the whole memory. Else it is copied."""
    if not isinstance(step, Narrow):
        return False
    before, at = result.shape[: step.target.dim], step.target.at
    return step.target.outer == 1 and prod(s.known for s in before) == 1 and (at is None or max(map(len, at)) == 1)
