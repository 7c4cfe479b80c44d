"""Numbers sections and functions by `kind`: those of one kind are equal except for names, so facts that follow from a
section or function alone are computed once per kind.

To compare sections, each value of a section gets a number, in the order in which values appear. Sections of a kind have
equal instructions on these numbers, the same numbers are read by other sections, and the graph's facts about each value
are equal. The proof does not trust a kind: it compares the sections (`prove/functions/alike.py`).

Functions of a kind have sections of the same kinds, on values that get the same numbers in the function. Only the
simulator uses their kind.
"""

from collections.abc import Hashable

from ssdsl.ir.function import Conversion, Function, FunctionInput, Instr, OpPart, Write, reads_of, results_of
from ssdsl.ir.value import Name, Var
from ssdsl.lower.stages import Formed
from ssdsl.record import replace

Locals = dict[Name, int]  # the numbers of local values, in the order of their appearance


def number_kinds(lowering: Formed) -> Formed:
    """Sets `kind` of all functions and sections."""
    numbering = _Numbering(lowering)
    return replace(lowering, functions=tuple(map(numbering.of, lowering.functions)))


class _Numbering:
    def __init__(self, lowering: Formed) -> None:
        self.typed, self.flats, self.about = lowering.typed, lowering.flats, _About(lowering)
        self.kinds: dict[Hashable, int] = {}
        self.equal: dict[Hashable, int] = {}  # a number for each distinct large object, such as a type

    def of(self, function: Function) -> Function:
        """A function with its kind and those of its sections."""
        around = function.time, function.submesh.axes, function.backward, function.again is None
        prepared = [p.var.name for p in function.prepared]
        numbers: Locals = {}  # of values in the function; `inside` are those in a section
        sections, wiring = [], []  # `wiring`: each section's kind, and the numbers of its values in the function
        for section, leaves in zip(function.sections, function.leaving(), strict=True):
            inside: Locals = {}
            instrs = tuple([self._key(instr, inside) for instr in section.body])
            left = tuple(n for name, n in inside.items() if name in leaves)
            values = tuple([self.about[name.value] for name in inside])
            given = tuple(sorted([inside[name] for name in prepared if name in inside]))
            again = (
                section.recompute,
                section.on_host,
                section.compiled,
                tuple(inside[name] for name in section.again),
                section.in_flight,
            )
            kind = self.kinds.setdefault((around, again, instrs, left, values, given), len(self.kinds))
            sections.append(replace(section, kind=kind))
            gathers = tuple(self._gathered(number, inside) for number in section.gathers)
            wiring.append((kind, bool(section.layer), gathers, *(numbers.setdefault(n, len(numbers)) for n in inside)))
        kind = self.kinds.setdefault((around, tuple(wiring), *self._ends(function, numbers)), len(self.kinds))
        return replace(function, sections=tuple(sections), kind=kind)

    def _ends(self, function: Function, numbers: Locals) -> tuple[Hashable, ...]:
        """A key for the inputs, prepared values, parameters and outputs of a function."""

        def comes(i: FunctionInput) -> Hashable:
            return i.time, i.merges, i.gradient, i.message is None, i.in_flight

        return (
            tuple((numbers.get(i.var.name), self._about(i.var), comes(i)) for i in function.inputs),
            tuple((numbers.get(p.var.name), self._about(p.var)) for p in function.prepared),
            tuple((numbers.get(p.var.name), self._about(p.var)) for p in function.parameters),
            tuple(
                (numbers.get(o.name), o.gradient, o.read, o.wgrad_only, o.in_flight, o.again) for o in function.outputs
            ),
        )

    def _gathered(self, number: int, inside: Locals) -> Hashable:
        """A key for a flat parameter that a section gathers, with the numbers of its weights there."""
        flat = self.flats[number]
        read = tuple(inside.get(Name(weight)) for weight in flat.weights)
        about = (
            flat.elements,
            flat.dtype,
            flat.sharded,
            flat.completion.in_backward,
            flat.submesh.axes,
            flat.ahead,
            flat.kept,
        )
        return read, about

    def _key(self, instr: Instr, numbers: Locals) -> Hashable:
        """A key for an instruction, with numbers in place of names."""
        reads = tuple([numbers.setdefault(name, len(numbers)) for name in reads_of(instr)])
        made = tuple([numbers.setdefault(var.name, len(numbers)) for var in results_of(instr)])
        match instr:
            case OpPart():
                return self.typed[instr.operator].number, instr.learns, instr.sides, reads, made
            case Conversion():
                steps = self._number(instr.forward), self._number(instr.backward), instr.in_place, instr.again
                return *steps, self._about(instr.result), reads, made
            case Write():
                return numbers.setdefault(Name(instr.buffer), len(numbers)), instr.slices, reads

    def _about(self, var: Var) -> Hashable:
        return self._number(var.type), self._number(var.gradient), self._number(var.shape)

    def _number(self, thing: Hashable) -> int:
        """A number that equal objects share."""
        return self.equal.setdefault(thing, len(self.equal))


class _About(dict[str, int]):
    """By value, a number for the model's facts about it and the origin of its memory; found at the first look-up."""

    def __init__(self, lowering: Formed) -> None:
        super().__init__()
        graph = lowering.graph
        self.graph, self.alone, self.read, self.learning = graph, graph.alone, graph.readers, lowering.learning
        self.equal: dict[Hashable, int] = {}

    def __missing__(self, name: str) -> int:
        value, root = self.graph.values[name], self.graph.values[self.graph.storages[name].root]
        known = value.origin, value.sizes, value.shape, value.dtype, value.differentiable
        about = *known, root.origin, name in self.alone, name in self.learning, name in self.read
        self[name] = number = self.equal.setdefault(about, len(self.equal))
        return number
