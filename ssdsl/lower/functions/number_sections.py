"""Which sections are the same but for names: they have one `kind`, a number, and what follows from a section alone is
found once for each kind.

Sections of a kind have the same instructions, on values that are numbered alike in the order in which they come; the
same of these leave them, and the same are weights. The key of an operator is that of its call and its cut (`Typed`), of
a conversion the objects that it is made of, which equal values share (`Answer`). The proof does not believe a kind: it
compares the sections (`prove/alike.py`).
"""

from collections.abc import Hashable
from dataclasses import replace

from ssdsl.ir.function import Extend, First, Function, Instr, Op, Reshard, Slice, Write, reads_of, results_of
from ssdsl.ir.value import Name, Var
from ssdsl.lower.lowering import Lowering

Locals = dict[Name, int]


def number_sections(lowering: Lowering) -> Lowering:
    """Sets `kind` of all sections."""
    numbering = _Numbering(lowering)
    return replace(lowering, functions=tuple(map(numbering.of, lowering.functions)))


class _Numbering:
    def __init__(self, lowering: Lowering) -> None:
        self.typed, self.values = lowering.typed, lowering.graph.values
        self.kinds: dict[Hashable, int] = {}
        self.equal: dict[Hashable, int] = {}  # things that are large: the number of those that are equal
        self.same: dict[int, int] = {}  # ... by identity

    def of(self, function: Function) -> Function:
        """A function with its sections numbered."""
        around = function.time, function.submesh.axes, function.backward
        sections = []
        for section, leaves in zip(function.sections, function.leaving(), strict=True):
            numbers: Locals = {}
            instrs = tuple(self._key(instr, numbers) for instr in section.body)
            left = tuple(n for name, n in numbers.items() if name in leaves)
            origins = tuple(self.values[name.value].origin for name in numbers)
            key = around, section.recompute, instrs, left, origins
            kind = self.kinds.setdefault(key, len(self.kinds))
            sections.append(replace(section, kind=kind))
        return replace(function, sections=tuple(sections))

    def _key(self, instr: Instr, numbers: Locals) -> Hashable:
        """An instruction without names."""
        reads = tuple(numbers.setdefault(name, len(numbers)) for name in reads_of(instr))
        made = tuple(numbers.setdefault(var.name, len(numbers)) for var in results_of(instr))
        match instr:
            case Op():
                return self.typed[instr.operator].number, instr.learns, instr.sides, reads, made
            case Reshard():
                steps = self._number(instr.forward), self._number(instr.backward), instr.in_place, instr.again
                return *steps, self._about(instr.result), reads, made
            case Slice() | First():
                cut = instr.cut if isinstance(instr, Slice) else None
                return instr.index, cut, self._about(instr.result), reads, made
            case Extend():
                return instr.index, instr.cut, self._about(instr.result), reads, made
            case Write():
                return numbers.setdefault(Name(instr.buffer), len(numbers)), instr.slices, reads

    def _about(self, var: Var) -> Hashable:
        return self._number(var.type), self._number(var.gradient), self._number(var.shape)

    def _number(self, thing: Hashable) -> int:
        if id(thing) not in self.same:
            self.same[id(thing)] = self.equal.setdefault(thing, len(self.equal))
        return self.same[id(thing)]
