"""The facts that the checks share: the program, facts that follow from its graph alone, and typed functions."""

import dataclasses
import re

from ssdsl.ir.function import Function, OpPart, names_along
from ssdsl.ir.layout import Submesh
from ssdsl.ir.param import Param
from ssdsl.ir.program import Program
from ssdsl.ir.value import Name
from ssdsl.model.graph import Graph, Operator, Origin
from ssdsl.prove.failures import ProofFailed, Rule, Wrong
from ssdsl.prove.types.local import Factors, Local
from ssdsl.prove.types.operators import OperatorPart
from ssdsl.record import Record, field
from ssdsl.text.source import Span

MOST_OPERATORS = 3  # the most operators that a failure names


class ProofFacts(Record):
    """A program, with facts that follow from its graph. `learning` are the values from which the loss follows through
    differentiable operators: they have gradients. `alone` are the values that follow from weights, buffers and
    constants only, `read` those that operators or the step itself read; `failures` are the broken rules, each once."""

    program: Program
    operators: dict[str, Operator]
    learning: frozenset[str]
    alone: frozenset[str]
    read: frozenset[str]
    params: dict[tuple[str, Submesh], Param]
    failures: dict[ProofFailed, Rule] = field(default_factory=dict)
    near: dict[str, list[Operator]] = field(default_factory=dict)  # those that make and read a value

    @property
    def graph(self) -> Graph:
        """The graph of the model."""
        return self.program.graph

    def shape(self, value: str) -> Factors:
        """The shape of a whole value: the sizes of the factors of each axis."""
        return self.graph.values[value].sizes

    def span_of(self, op: OpPart, submesh: Submesh) -> Span | None:
        """The statement of the plan that splits an operator, or else the one that makes its mesh."""
        said = (self.program.plan.said(op.operator, n) for n in names_along(op.splits))
        return next((span for span in said if span is not None), submesh.mesh.span)

    def learns(self, name: Name) -> bool:
        """Whether a value has a gradient."""
        return name.value in self.learning

    # -- failures ----------------------------------------------------------------------------------------------------

    def fail(
        self,
        rule: Rule,
        where: str,
        tensor: object = "",
        wanted: object = "",
        had: object = "",
        span: Span | None = None,
    ) -> None:
        """Adds a failure. The text names operators that make or read `tensor`; `span` is the statement to show."""
        value = self.graph.values.get(str(tensor).partition("@")[0])
        classes = [c for axis in value.factors for c in axis] if value is not None else []

        def named(text: object) -> str:
            return re.sub(r"factor (\d+)", lambda m: self._dim(classes, int(m[1])), str(text))

        around = tuple((o.kind, o.module, o.source) for o in self._around(str(tensor).partition("@")[0]))
        failed = ProofFailed(span, rule.value, where, str(tensor), named(wanted), named(had), around)
        self.failures[failed] = rule

    def fail_with(self, wrong: Wrong, where: str, tensor: object = "", span: Span | None = None) -> None:
        """Adds a broken rule with its place."""
        self.fail(wrong.rule, where, tensor, wrong.wanted, wrong.had, span)

    def _around(self, name: str) -> list[Operator]:
        """The first few operators that have this name, or make or read the value of this name."""
        if not self.near:
            for operator in self.graph.operators:
                for value in dict.fromkeys((operator.name, *(o.value for o in (*operator.outputs, *operator.inputs)))):
                    self.near.setdefault(value, []).append(operator)
        return self.near.get(name, [])[:MOST_OPERATORS]

    def _dim(self, classes: list[int], factor: int) -> str:
        known = factor < len(classes) and classes[factor] in self.graph.dim_names
        return self.graph.dim_names[classes[factor]] if known else f"factor {factor}"


class Alike(Record):
    """A section, with its names and operators in order: in two sections of the same `number` (class), the n-th ones
    correspond. A section without a number has a class of its own, or has rows sorted by experts, which are never
    shared, because the values that count them are told apart by names."""

    number: int | None
    names: tuple[Name, ...]
    operators: tuple[str, ...]


@dataclasses.dataclass(slots=True)
class TypedFunction:
    """A function after the forward walk: the type of every local value, the part that each operator computes, the value
    that leaves in each slot, and the values that are written with a gradient (`graded`). `sections` are the function's,
    with their classes."""

    function: Function
    sections: list[Alike]
    types: dict[Name, Local] = dataclasses.field(default_factory=dict)
    parts: dict[str, OperatorPart] = dataclasses.field(default_factory=dict)
    slots: dict[str, Name] = dataclasses.field(default_factory=dict)
    graded: set[Name] = dataclasses.field(default_factory=set)


Given = tuple[Local | None, bool]  # the type of a value, None if it is not there yet, and whether it is graded


class Walked(Record):
    """A section that was walked without a failure: its values before and after the walk, in the order of its names, and
    the parts that its operators compute."""

    entering: tuple[Given, ...]
    leaving: tuple[Given, ...]
    parts: tuple[OperatorPart, ...]


def facts_of(program: Program) -> ProofFacts:
    """The facts of a program."""
    graph = program.graph
    params = {(p.weight, p.submesh): p for p in program.params}
    learning = _learning(graph) if program.trains else frozenset[str]()  # where nothing trains, nothing has a gradient
    return ProofFacts(program, graph.by_name, learning, _alone(graph), _read(graph), params)


def _learning(graph: Graph) -> frozenset[str]:
    """The values with a gradient, found backwards from the loss: an operand has one if it is differentiable and a
    result of its operator has one."""
    found = {loss for loss in graph.losses if graph.values[loss].differentiable}
    for operator in reversed(graph.operators):
        if any(o.value in found for o in operator.outputs):
            found.update(o.value for o in operator.inputs if graph.values[o.value].differentiable)
    return frozenset(found)


def _alone(graph: Graph) -> frozenset[str]:
    """The values that do not depend on inputs of the model or on the seed, found forwards from weights, buffers and
    constants."""
    found = {v.name for v in graph.values.values() if v.origin not in (Origin.INPUT, Origin.SEED, Origin.OPERATOR)}
    for operator in graph.operators:
        if found.issuperset(o.value for o in operator.inputs):
            found.update(o.value for o in operator.outputs)
    return frozenset(found)


def _read(graph: Graph) -> frozenset[str]:
    """The values that operators read, and the results of a step."""
    found = {i.value for operator in graph.operators for i in operator.inputs}
    return frozenset(found | graph.results)
