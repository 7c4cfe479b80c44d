"""What the checks have in common: the program, and what follows from its graph alone."""

from dataclasses import dataclass, field

from ssdsl.ir.function import Function, Op
from ssdsl.ir.layout import Submesh
from ssdsl.ir.param import Param
from ssdsl.ir.program import Program
from ssdsl.ir.value import Name
from ssdsl.model.graph import Graph, Operator, Origin
from ssdsl.prove.failures import Failures
from ssdsl.prove.local import Factors, Local
from ssdsl.prove.operators import Part
from ssdsl.text.source import Span


@dataclass(frozen=True, slots=True)
class Facts:
    """A program with what follows from its graph. `learning` are the values from which the loss follows through
    differentiable operators: they have gradients. `alone` are the values that follow from weights only, `read` those
    that anything reads."""

    program: Program
    operators: dict[str, Operator]
    learning: frozenset[str]
    alone: frozenset[str]
    read: frozenset[str]
    params: dict[tuple[str, Submesh], Param]
    failures: Failures

    @property
    def graph(self) -> Graph:
        return self.program.graph

    def shape(self, value: str) -> Factors:
        """A whole value: axis by axis the sizes of its factors."""
        return self.graph.values[value].sizes

    def span_of(self, op: Op, submesh: Submesh) -> Span | None:
        """The statement of the plan that splits an operator, or else made its mesh."""
        said = (self.program.plan.said(op.operator, s.coordinate.name) for s in op.splits)
        return next((span for span in said if span is not None), submesh.mesh.span)

    def learns(self, name: Name) -> bool:
        return name.value in self.learning


@dataclass(frozen=True, slots=True)
class Alike:
    """A section of a class: its names and operators in the order in which they come, the same in all of the class.
    Without a number it is like no other, or has rows that lie with their experts, which other names tell apart."""

    number: int | None
    names: tuple[Name, ...]
    operators: tuple[str, ...]


@dataclass(slots=True)
class Typed:
    """What the forward walk found of a function: the type of every local value, the part that each operator computes,
    what leaves it by slot, and which values are said to have a gradient. `sections` are those of the function, as
    others are alike."""

    function: Function
    sections: list[Alike]
    types: dict[Name, Local] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    slots: dict[str, Name] = field(default_factory=dict)
    graded: set[Name] = field(default_factory=set)


Given = tuple[Local | None, bool]  # the type of a value, if it is there, and whether it is said to have a gradient


@dataclass(frozen=True, slots=True)
class Walked:
    """A section that was walked without a failure: its values before and behind it, in the order of their names, and
    the parts that its operators compute."""

    entering: tuple[Given, ...]
    leaving: tuple[Given, ...]
    parts: tuple[Part, ...]


def facts_of(program: Program) -> Facts:
    """The facts of a program."""
    graph = program.graph
    params = {(p.weight, p.submesh): p for p in program.params}
    learning = _learning(graph) if program.trains else frozenset[str]()  # where nothing trains, nothing has a gradient
    return Facts(program, graph.by_name, learning, _alone(graph), _read(graph), params, Failures(graph))


def _learning(graph: Graph) -> frozenset[str]:
    """Backwards from the loss: what an operator reads has a gradient if it can have one and a result of it has one."""
    found = {graph.loss} if graph.values[graph.loss].differentiable else set()
    for operator in reversed(graph.operators):
        if any(o.value in found for o in operator.outputs):
            found.update(o.value for o in operator.inputs if graph.values[o.value].differentiable)
    return frozenset(found)


def _alone(graph: Graph) -> frozenset[str]:
    """Forwards from weights, buffers and constants: what no input of the model reaches."""
    found = {v.name for v in graph.values.values() if v.origin not in (Origin.INPUT, Origin.SEED, Origin.OPERATOR)}
    for operator in graph.operators:
        if found.issuperset(o.value for o in operator.inputs):
            found.update(o.value for o in operator.outputs)
    return frozenset(found)


def _read(graph: Graph) -> frozenset[str]:
    """What operators read, and what a step is there for."""
    found = {i.value for operator in graph.operators for i in operator.inputs}
    return frozenset(found | {graph.loss, *graph.updates.values(), *graph.outputs.values()})
