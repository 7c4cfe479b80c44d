"""Graphs and plans written by hand, for tests of single passes: small, and without torch.

    input x[batch, in]
    weight w[in, out]
    y[batch, out] = mm x[batch, in] w[in, out]
    loss[] = sum y[batch, out]

A result is written with its axes, then the operator, then its operands; numbers are further arguments. Axes of several
factors are `qkv·heads`. `b[out]+` is added by the first part alone, `in*` needs a kernel that combines parts.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from ssdsl.ir.layout import Submesh
from ssdsl.lower.asks import Converted
from ssdsl.lower.lower import PASSES, Pass
from ssdsl.lower.stages import Next, Planned
from ssdsl.model.graph import Dim, Graph, Operand, Operator, Origin, Ref, Stage, Value
from ssdsl.model.memory.observed import Observed, SavedByParts, SavedShapes
from ssdsl.model.memory.storage import Storage
from ssdsl.model.ops.rows import ROWS
from ssdsl.model.target import target
from ssdsl.plan.plan import Index, Mesh, OpPlan, Order, Phase, Placement, Plan, TaskSet
from ssdsl.plan.regions import Digit
from ssdsl.record import field_names, replace
from ssdsl.rewrite.rewrite import rewrite
from ssdsl.text.source import Source, Span

SPAN = Span(Source("by hand", ""), 0, 0)
PARAMETERS = {
    "addmm": "self mat1 mat2",
    "mm": "self mat2",
    "amax": "self dim keepdim",
    **dict.fromkeys(("add", "mul", "div", "sub"), "self other"),
}
SAVES = {"mm": SavedShapes((0, 1)), "mul": SavedShapes((0, 1)), "relu": SavedShapes((), (0,))}  # for backward
TENSOR = re.compile(r"([\w.]+)\[([^]]*)\](\+?)")


def graph_of(text: str, **sizes: int) -> Graph:
    """The graph of some lines; dimensions have these sizes. The last result is the loss."""
    found = _Reading(sizes)
    for line in filter(None, map(str.strip, text.splitlines())):
        found.line(line)
    names = dict(enumerate(sizes))
    views = {o.outputs[0].value: o.inputs[0].value for o in found.operators if o.row.regroups}
    places = {name: Storage(views.get(name, name), _strides(v.shape)) for name, v in found.values.items()}
    loss = next(reversed(found.values))
    return Graph("by hand", tuple(found.operators), found.values, loss, names, {}, storages=places)


class _Reading:
    """The values and operators of the lines so far."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes, self.classes = sizes, {name: cls for cls, name in enumerate(sizes)}
        self.values: dict[str, Value] = {}
        self.operators: list[Operator] = []

    def line(self, line: str) -> None:
        left, _, right = line.partition(" = ")
        if right:
            self.operator(left, right)
        else:
            origin, _, tensor = line.partition(" ")
            self.value(tensor, Origin(origin))

    def operator(self, left: str, right: str) -> None:
        results, operands = TENSOR.findall(left), TENSOR.findall(right)
        kind, *numbers = TENSOR.sub("", right).split()
        words = dict.fromkeys(w for _, axes, _ in (*operands, *results) for axis in _split(axes) for w in axis)
        dims = {word.rstrip("*"): self.dim(word) for word in words}
        inputs, outputs = (tuple(_operand(tensor, dims) for tensor in each) for each in (operands, results))
        learns = any(self.values[o.value].differentiable for o in inputs)
        for found in TENSOR.finditer(left):
            self.value(found[0], Origin.OPERATOR, learns)
        function = target(f"aten::{kind}", PARAMETERS.get(kind, "self"))
        args = function, *(Ref(o.value) for o in inputs), *map(int, numbers)
        row, saves = ROWS[function.name], SAVES.get(kind, SavedShapes())
        seen = Observed(frozenset(), frozenset(), saves, SavedByParts(saves), SavedByParts(saves))
        call = outputs[0].value, kind, function.name, "", "by hand", Stage.COMPUTE, args, ()
        self.operators.append(Operator(*call, inputs, outputs, tuple(dims.values()), row, observed=seen))

    def dim(self, word: str) -> Dim:
        name = word.rstrip("*")
        return Dim(name, self.sizes[name], self.classes[name], combined="*" in word)

    def value(self, tensor: str, origin: Origin, differentiable: bool = False) -> None:
        name, axes, _ = TENSOR.findall(tensor)[0]
        names = [[w.rstrip("*") for w in axis] for axis in _split(axes)]
        sizes = tuple(tuple(self.sizes[n] for n in axis) for axis in names)
        factors = tuple(tuple(self.classes[n] for n in axis) for axis in names)
        learns = differentiable or origin is Origin.WEIGHT
        self.values[name] = Value(name, origin, tuple(map(math.prod, sizes)), "float32", learns, factors, sizes)


def _split(axes: str) -> list[list[str]]:
    return [axis.strip().split("·") for axis in axes.split(",") if axis.strip()]


def _operand(tensor: tuple[str, str, str], dims: Mapping[str, Dim]) -> Operand:
    name, axes, once = tensor
    numbers = {word: n for n, word in enumerate(dims)}
    return Operand(name, tuple(tuple(numbers[w.rstrip("*")] for w in axis) for axis in _split(axes)), bool(once))


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))


def plan_of(
    graph: Graph,
    axes: Mapping[str, int],
    splits: Mapping[str, str] | None = None,
    places: Mapping[str, tuple[str, int]] | None = None,
) -> Plan:
    """A plan on one mesh. `splits` has the indices that cut a dimension (`batch`, of one operator alone `y.batch`), the
    outermost first: `dp 2, m 4`. `places` fixes an axis of the mesh for an operator."""
    records = {}
    for operator in graph.operators:
        indices = []
        for number, dim in enumerate(operator.dims):
            said = (splits or {}).get(f"{operator.name}.{dim.name}", (splits or {}).get(dim.name, ""))
            for name, count in map(str.split, filter(None, said.split(","))):
                indices.append(Index(name, number, Digit(int(count)), SPAN))
        at = (places or {}).get(operator.name)
        place = Placement("gpus", (at,) if at is not None else (), SPAN)
        records[operator.name] = OpPlan(place, tuple(indices))
    return Plan(graph, (Mesh("gpus", tuple(axes.items()), 0),), {}, records)


def saying(plan: Plan, operators: str, **facts: object) -> Plan:
    """The plan with more facts of some operators, `y z`."""
    records = {name: replace(plan.of(name), **facts) for name in operators.split()}  # type: ignore[arg-type]
    return replace(plan, operators=plan.operators | records)


def ordering(plan: Plan, operators: str, index: str, phase: Phase | None = None) -> Plan:
    """The plan with an `order` of some operators: their first part of an index before the second."""
    first, second = (TaskSet(1, ((index, part),), phase) for part in (0, 1))
    return replace(saying(plan, operators, sets=frozenset({1})), orders=(*plan.orders, Order(first, second, SPAN)))


def described(plan: Plan) -> str:
    """The operators of a plan, a line each: what they read, where they are, and what cuts their dimensions."""
    return "\n".join(_described(operator, plan) for operator in plan.graph.operators)


def _described(operator: Operator, plan: Plan) -> str:
    record = plan.of(operator.name)
    names = [[i.name for i in record.indices if d in i.dims] for d in range(len(operator.dims))]
    cuts = [f"{dim.name} {dim.size} by {', '.join(by)}" for dim, by in zip(operator.dims, names, strict=True) if by]
    called = " ".join([operator.kind, *(o.value for o in operator.inputs)])
    return f"{operator.name} = {called} on {record.place} ({', '.join(cuts)})".removesuffix(" ()")


def after(step: Callable[[Any], Next], plan: Plan) -> Next:
    """The plan rewritten, then lowered up to a pass and by it."""
    passes: tuple[Pass, ...] = PASSES[: PASSES.index(step)]
    before = Planned(rewrite(plan))
    for each in passes:
        before = each(before)
    return step(before)


def staged(stage: type[Next], plan: Plan, **known: object) -> Next:
    """A stage of which only these fields are known; the others are empty."""
    empty: dict[str, object] = {"loss": None, "converted": Converted(), "learning": frozenset()}
    for name in {"segments", "params", "prologues", "functions", "messages", "results", "flats", "roles", "tasks"}:
        empty[name] = ()
    fields = {name: empty.get(name, {}) for name in field_names(stage) if name not in field_names(Planned)}
    return stage(plan, **fields | known)


def submesh(plan_axes: Mapping[str, int], **fixed: int) -> Submesh:
    """A submesh of the one mesh."""
    return Submesh(Mesh("gpus", tuple(plan_axes.items()), 0), tuple(fixed.items()))
