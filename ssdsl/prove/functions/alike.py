"""Compares sections of one kind, which have to be equal except for names, instruction by instruction.

The lowering numbers kinds (`Section.kind`), and generated code has one function for each. The proof walks only the
first section of a kind, and its result holds for the others. But it does not trust the number: here it compares their
instructions, and the model's operators, itself.
"""

from dataclasses import dataclass, field
from typing import Any

from ssdsl.ir.function import (
    Carried,
    Conversion,
    Function,
    Instr,
    OpPart,
    OpSplit,
    Section,
    Write,
    reads_of,
    results_of,
)
from ssdsl.ir.value import Name, Var
from ssdsl.model.graph import Ref
from ssdsl.prove.facts import Alike, ProofFacts
from ssdsl.prove.failures import Rule

NESTED = Ref, tuple, list  # arguments in which there may be tensors
Form = tuple[Any, ...]  # a section with numbers in place of names: sections that are alike have equal forms


@dataclass(slots=True)
class Classes:
    """The classes of a program's sections. `firsts` is the form of the first section of each kind."""

    facts: ProofFacts
    firsts: dict[int, Form] = field(default_factory=dict)

    def sections(self, function: Function) -> list[Alike]:
        """The `Alike` of each section of a function. Adds a failure for one that differs from the first of its kind."""
        return [self._alike(function, s, left) for s, left in zip(function.sections, function.leaving(), strict=True)]

    def _alike(self, function: Function, section: Section, leaving: frozenset[Name]) -> Alike:
        numbering = _Numbering(self.facts)
        instrs = tuple(map(numbering.instr, section.body))
        left = tuple(n for name, n in numbering.names.items() if name in leaving)
        again = (
            section.recompute,
            section.on_host,
            tuple(numbering.names[name] for name in section.again if name in numbering.names),
        )
        around = function.time, function.submesh.axes, function.backward, again, section.in_flight
        form = *around, instrs, left, tuple(numbering.named), tuple(numbering.about)
        number = section.kind
        if number is not None and self.firsts.setdefault(number, form) != form:
            where, span = f"function `{function.name}`, section `{section.layer}`", function.submesh.mesh.span
            self.facts.fail(Rule.KIND, where, "", "as others of its kind", number, span)
            number = None
        values = self.facts.graph.values
        # a negative class is that of rows sorted by experts (`ir/rows.py`): such sections are walked one by one
        if any(c < 0 for v in numbering.values for axis in values[v].factors for c in axis):
            number = None
        operators = tuple(i.operator for i in section.body if isinstance(i, OpPart))
        return Alike(number, tuple(numbering.names), operators)


@dataclass(slots=True)
class _Numbering:
    """Numbers a section's local names, and the model's values, in the order in which they appear. `named` has for each
    name the number of its value, `about` for each value the facts that the proof uses."""

    facts: ProofFacts
    names: dict[Name, int] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)
    named: list[int] = field(default_factory=list)
    about: list[Form] = field(default_factory=list)

    def instr(self, instr: Instr) -> Form:
        """The form of an instruction: numbers in place of names."""
        reads, made = [self._name(n) for n in reads_of(instr)], [self._var(v) for v in results_of(instr)]
        match instr:
            case OpPart():
                return "op", reads, made, *self._operator(instr)
            case Conversion():
                return "reshard", reads, made, instr.forward, instr.backward, instr.in_place, instr.again
            case Write():
                return "write", reads, self._name(Name(instr.buffer)), instr.slices

    def _operator(self, op: OpPart) -> Form:
        operator = self.facts.operators[op.operator]
        return (
            *(op.kernel, op.first, op.sides, op.orders, [self._split(s) for s in op.splits]),
            *(operator.kind, operator.target, operator.stage, operator.orders),
            [(d.size, d.fixed, d.combined, d.window, d.beside) for d in operator.dims],
            *(self._argument(operator.args), self._argument(operator.kwargs)),
            [(o.axes, o.once, self._value(o.value)) for o in (*operator.inputs, *operator.outputs)],
        )

    def _split(self, split: OpSplit) -> Any:
        if not isinstance(split, Carried):
            return split
        return split.coordinate, split.digit.parts, split.digit.sizes, {self._value(o) for o in split.operands}

    def _var(self, var: Var) -> Form:
        return self._name(var.name), var.type, var.gradient, var.shape, var.dtype

    def _name(self, name: Name) -> int:
        if name not in self.names:
            self.names[name] = len(self.names)
            self.named.append(self._value(name.value))
        return self.names[name]

    def _value(self, value: str) -> int:
        if value not in self.values:
            self.values[value] = len(self.values)
            whole, facts = self.facts.graph.values[value], self.facts
            known = whole.origin, whole.sizes, whole.shape, whole.dtype, whole.differentiable
            self.about.append((*known, value in facts.learning, value in facts.read, value in facts.alone))
        return self.values[value]

    def _argument(self, item: Any) -> Any:
        """An argument of a call, or several, with a number in place of each reference to a tensor."""
        if isinstance(item, Ref):
            return Ref, self._value(item.value)
        return tuple([self._argument(i) if isinstance(i, NESTED) else i for i in item])
