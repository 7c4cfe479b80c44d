"""A function while it grows: what it reads, what it makes, and what was converted before."""

from dataclasses import dataclass, field, replace

from ssdsl.ir.function import (
    Backward,
    Extend,
    First,
    Function,
    Input,
    Instr,
    Op,
    Output,
    Parameter,
    Prepared,
    Reshard,
    Section,
    Slice,
    Write,
    reads_of,
)
from ssdsl.ir.layout import Shape
from ssdsl.ir.value import Name, Type, Var
from ssdsl.lower.lowering import Segment
from ssdsl.model.graph import Operand, Operator


@dataclass(frozen=True, slots=True)
class Need:
    """What an operator needs of a tensor, and the type of the gradient that it hands back (None: it hands none)."""

    shape: Shape
    type: Type
    gradient: Type | None


@dataclass(frozen=True, slots=True)
class Made:
    """A value that an operator left: where, and by which operator."""

    function: int
    operator: Operator
    operand: Operand
    shape: Shape
    var: Var


@dataclass(slots=True)
class Draft:
    """A function while it grows. `converted` finds what was converted before."""

    number: int
    segment: Segment
    inputs: dict[Name, Input] = field(default_factory=dict)
    prepared: dict[Name, Prepared] = field(default_factory=dict)
    parameters: dict[str, Parameter] = field(default_factory=dict)
    body: list[Instr] = field(default_factory=list)
    outputs: dict[Name, Output] = field(default_factory=dict)
    converted: dict[tuple[object, ...], Var] = field(default_factory=dict)
    received: dict[str, tuple[Type, Type | None, str, int]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)

    def fresh(self, value: str) -> Name:
        """A new version of a value."""
        self.versions[value] = self.versions.get(value, -1) + 1
        return Name(value, self.versions[value])


def finished(draft: Draft, learning: frozenset[str], loss: str) -> Function:
    """The function of a draft; `learning` are the values of the graph that have a gradient."""
    segment, body = draft.segment, tuple(draft.body)
    learns = any(o.value in learning for op in segment.operators for o in op.outputs)
    outputs = tuple(draft.outputs.values())
    live = _live(draft.body, learning)
    parameters = tuple(
        p if p.var.name in live else Parameter(replace(p.var, gradient=None)) for p in draft.parameters.values()
    )
    return Function(
        draft.number,
        f"block{draft.number}",
        segment.submesh,
        segment.time,
        tuple(_given_back(i, live) for i in draft.inputs.values()),
        tuple(draft.prepared.values()),
        parameters,
        (Section("", False, body),),
        outputs,
        _backward(segment, parameters) if learns else Backward.NONE,
        segment.stage,
        next((k for k, o in enumerate(outputs) if o.name == Name(loss)), None),
    )


def _backward(segment: Segment, parameters: tuple[Parameter, ...]) -> Backward:
    if not segment.in_halves:
        return Backward.WHOLE
    return Backward.HALVES if any(p.var.gradient is not None for p in parameters) else Backward.DGRAD


def _live(body: list[Instr], learning: frozenset[str]) -> set[Name]:
    """The values that get a gradient from an operator of the function."""
    live: set[Name] = set()
    for instr in reversed(body):
        match instr:
            case Op():
                if any(v.name.value in learning for v in instr.results):
                    live.update(instr.reads)
            case Reshard() | Slice() | First() | Extend():
                if instr.result.name in live:
                    live.update(reads_of(instr))
            case Write():
                pass
    return live


def _given_back(given: Input, live: set[Name]) -> Input:
    """An input; one that no operator gives a gradient has none."""
    if given.var.name in live:
        return given
    return replace(given, var=replace(given.var, gradient=None), gradient=False)
