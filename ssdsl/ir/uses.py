"""Where the local values of a function are made and read."""

from typing import NamedTuple

from ssdsl.ir.value import Name
from ssdsl.record import Record


class InstrPlace(NamedTuple):
    """The place of an instruction in a function: the number of its section, and its number there. Places compare in the
    order in which instructions run."""

    section: int
    instr: int


class Uses(Record):
    """By local value, the place of the instruction that makes it, and the places of those that read it, in order, each
    once. A value that enters the function has no maker. `outputs` are the values that leave the function."""

    makers: dict[Name, InstrPlace]
    readers: dict[Name, list[InstrPlace]]
    outputs: frozenset[Name]

    def last(self, name: Name) -> InstrPlace:
        """The place of the last instruction that reads a value of the function, or that makes it if none reads it."""
        return self.readers[name][-1] if name in self.readers else self.makers[name]
