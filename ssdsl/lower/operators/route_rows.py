"""Rows lie with their experts: where a plan cuts products of experts, each part has the rows of its own experts alone.

`routed_mm` of all rows, split by experts, leaves zeros where a row's expert is another part's. So every part would hold
all rows, and what stands between two such products would need their sum. In place of that the rows that name an expert
of the part are picked in front of the first product, and put back behind the last one:

    x = dispatch(rows, experts, own)         rows: all; x: those of the experts `own`
    y = expert_mm(act(expert_mm(x, w1)), w2)
    z = combine(y, experts, own)             zeros where other parts have rows: a sum over the parts

Such rows are a dimension by experts: an axis of [batch, seq, top] becomes [experts, batch, slots], cut by experts as
weights are. How many rows an expert has is known when it runs: `slots` is their number if all have as many, and so are
the sizes in the program those of a balanced routing. No operator between reads a size, and no step of communication
cuts the rows, as all of them are cut alike; where a plan cuts them otherwise, the products stay as they are.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ssdsl.ir.layout import Submesh
from ssdsl.lower.lowering import Lowering
from ssdsl.model.graph import Dim, Graph, Operand, Operator, Origin, Ref, Stage, Value
from ssdsl.model.ops.registry import row
from ssdsl.plan.plan import Index, Placement, Plan, TaskSet

ROUTED = "ssdsl::routed_mm"
EACH_ROW = ("aten::split.Tensor", "aten::split_with_sizes", "aten::slice.Tensor", "aten::_to_copy")
BALANCED = "how many rows an expert has is known when it runs"


def route_rows(lowering: Lowering) -> Lowering:
    """Replaces the plan by one in which rows lie with their experts, where it cuts experts over devices."""
    plan = lowering.plan
    groups: dict[str, list[Operator]] = {}
    for operator in plan.graph.operators:
        if operator.target == ROUTED:
            groups.setdefault(operator.inputs[2].value, []).append(operator)
    found = (_region(plan, products) for products in groups.values())
    regions = [region for region in found if region is not None]
    return replace(lowering, plan=_Rewriting(plan, regions).plan()) if regions else lowering


# -- which operators ---------------------------------------------------------------------------------------------------

Cut = tuple[str, int, tuple[int, ...] | None]  # an index, without the dimension


@dataclass(frozen=True, slots=True)
class _Region:
    """Products whose rows name their experts by one value, and the operators between them.

    `kept` dimensions of the rows, the outer ones, stay dimensions of the rows of an expert. `indices` cut the experts.
    """

    ids: str
    experts: Dim
    operators: dict[str, tuple[int, ...]]  # each with the dimensions that its rows are made of
    kept: int
    indices: tuple[Index, ...]


def _region(plan: Plan, products: list[Operator]) -> _Region | None:
    """The region of products that read the same experts, if rows can lie with them."""
    first = products[0]
    if any(len(p.inputs[1].axes[0]) != 1 for p in products):
        return None
    experts, of_first = _experts(first), _rows(first)
    cuts = _cuts(plan, first, (experts,))
    names = {name for (name, _, _), _ in cuts}
    if of_first is None or not cuts or not all(_in_space(plan, first, name) for name in names):
        return None
    inside, rows_cut = _between(plan.graph, products), _cuts(plan, first, of_first)
    rows = {o.name: _rows(o) for o in inside}
    sizes = tuple(first.dims[d].size for d in of_first)
    for operator in inside:
        here = rows[operator.name]
        if here is None or tuple(operator.dims[d].size for d in here) != sizes:
            return None
        others = [d for d in range(len(operator.dims)) if d not in here]
        if operator in products:
            fits = _cuts(plan, operator, (_experts(operator),)) == cuts
        else:  # cut by rows along the same devices it goes where they go
            fits = not any(name in names for (name, _, _), _ in _cuts(plan, operator, tuple(others)))
        kept = [cut for cut in _cuts(plan, operator, here) if cut[0][0] not in names]
        if not fits or not _is_beside(plan, operator, first) or kept != rows_cut:
            return None
    number = first.dims[experts].size
    fitting = [k for k in range(len(sizes)) if math.prod(sizes[k:]) % number == 0]
    if not fitting or any(at >= max(fitting) for _, at in rows_cut):
        return None
    indices = tuple(i for i in plan.indices[first.name] if i.dim == experts)
    found = {name: here for name, here in rows.items() if here is not None}
    return _Region(first.inputs[2].value, first.dims[experts], found, max(fitting), indices)


def _experts(product: Operator) -> int:
    """The dimension of a product's experts."""
    (dim,) = product.inputs[1].axes[0]
    return dim


def _in_space(plan: Plan, operator: Operator, index: str) -> bool:
    placement = plan.placements[operator.name]
    mesh = next(m for m in plan.meshes if m.name == placement.mesh)
    return index in dict(Submesh(mesh, placement.fixed).axes)


def _cuts(plan: Plan, operator: Operator, dims: tuple[int, ...]) -> list[tuple[Cut, int]]:
    """The indices on some dimensions, each with the place of its dimension among them."""
    indices = plan.indices.get(operator.name, ())
    return [((i.name, i.count, i.sizes), dims.index(i.dim)) for i in indices if i.dim in dims]


def _is_beside(plan: Plan, a: Operator, b: Operator) -> bool:
    """Whether two operators run on the same devices."""
    place, other = plan.placements[a.name], plan.placements[b.name]
    return (place.mesh, place.fixed) == (other.mesh, other.fixed)


def _between(graph: Graph, products: list[Operator]) -> list[Operator]:
    """The products, and the operators on the ways from one to another."""
    order = {o.name: at for at, o in enumerate(graph.operators)}
    names, reached, found = {p.name for p in products}, set[str](), []
    for operator in graph.operators[order[products[0].name] : order[products[-1].name] + 1]:
        if operator.name in names or any(i.value in reached for i in operator.inputs):
            reached.update(o.value for o in operator.outputs)
            found.append(operator)
    needed, inside = set[str](), []
    for operator in reversed(found):
        if operator.name in names or any(o.value in needed for o in operator.outputs):
            needed.update(i.value for i in operator.inputs)
            inside.append(operator)
    return inside[::-1]


def _rows(operator: Operator) -> tuple[int, ...] | None:
    """The dimensions of the rows of an operator that works on each row by itself, and needs no size of them; else None.

    They are the first axis of all its results, and of each of its operands that has them.
    """
    pointwise = torch.Tag.pointwise in getattr(operator.args[0], "tags", ())
    if operator.stage is not Stage.COMPUTE or not (pointwise or operator.target in (ROUTED, *EACH_ROW)):
        return None
    if (row(operator).kernel is not None and operator.target != ROUTED) or not all(o.axes for o in operator.outputs):
        return None
    rows = operator.outputs[0].axes[0]
    given = [o for o in operator.inputs if any(o.carries(d) for d in rows)]
    dims = [operator.dims[d] for d in rows]
    if not rows or not all(_has_rows(o, rows) for o in (*operator.outputs, *given)):
        return None
    return None if any(d.fixed or d.combined or d.window is not None for d in dims) else rows


def _has_rows(operand: Operand, rows: tuple[int, ...]) -> bool:
    """Whether the rows are the first axis of a tensor, and of no other."""
    return bool(operand.axes) and operand.axes[0] == rows and not any(d in a for a in operand.axes[1:] for d in rows)


# -- what becomes of the plan ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Rewriting:
    """Walks the operators in order. A value at its experts has a name of its own; put back it has the name it had."""

    source: Plan
    regions: list[_Region]
    operators: list[Operator] = field(default_factory=list)
    beside: dict[str, str] = field(default_factory=dict)  # an operator that is added, with the one beside which it runs
    moved: dict[tuple[str, str], str] = field(default_factory=dict)  # what names the experts, a value -> its rows there
    own: dict[str, str] = field(default_factory=dict)  # what names the experts of rows -> the numbers of a part's
    values: dict[str, Value] = field(init=False)
    names: dict[int, str] = field(init=False)
    indices: dict[str, tuple[Index, ...]] = field(init=False)
    placements: dict[str, Placement] = field(init=False)

    def __post_init__(self) -> None:
        graph = self.source.graph
        self.values, self.names = dict(graph.values), dict(graph.dim_names)
        self.indices, self.placements = dict(self.source.indices), dict(self.source.placements)

    def plan(self) -> Plan:
        """The plan with another graph, and the same statements about it."""
        graph = self.source.graph
        self.own = {region.ids: self._own(region) for region in self.regions}
        region_of = {name: region for region in self.regions for name in region.operators}
        for operator in graph.operators:
            region = region_of.get(operator.name)
            if region is None:
                self.operators.append(operator)
            else:
                self._inside(operator, region)
        changed = replace(graph, operators=tuple(self.operators), values=self.values, dim_names=self.names)
        return replace(
            self.source,
            graph=changed,
            indices=self.indices,
            placements=self.placements,
            orders=tuple(replace(o, before=self._set(o.before), after=self._set(o.after)) for o in self.source.orders),
            clocks=tuple(
                replace(c, rows=tuple(replace(r, tasks=self._set(r.tasks)) for r in c.rows)) for c in self.source.clocks
            ),
            recomputes=tuple(replace(r, units=tuple(map(self._with, r.units))) for r in self.source.recomputes),
        )

    def _set(self, tasks: TaskSet) -> TaskSet:
        return replace(tasks, operators=self._with(tasks.operators))

    def _with(self, operators: frozenset[str]) -> frozenset[str]:
        """A set of operators with those that run beside them."""
        return operators | {added for added, other in self.beside.items() if other in operators}

    def _own(self, region: _Region) -> str:
        """The numbers of all experts: a part of them are those of a part."""
        name = f"{region.ids}_own"
        size, dim = region.experts.size, replace(region.experts, fixed="it is part of a constant")
        args = (torch.ops.aten.arange.default, size)
        kwargs = (("device", torch.device("cpu")), ("pin_memory", False))
        out = Operand(name, ((0,),))
        made = Operator(name, "arange", "aten::arange", "", "", Stage.CONSTANT, args, kwargs, (), (out,), (dim,))
        self.operators.append(made)
        self.values[name] = _value(made, out, "int64", learns=False)
        return name

    def _name(self, value: str) -> str:
        """A name for rows at their experts: rows may go to those of several routers."""
        name, count = f"{value}_at_experts", 1
        while name in self.values:
            count += 1
            name = f"{value}_at_experts_{count}"
        return name

    # -- one operator of a region ------------------------------------------------------------------------------------

    def _inside(self, operator: Operator, region: _Region) -> None:
        rows = region.operators[operator.name]
        is_product = operator.target == ROUTED
        gone = {*rows[region.kept :], *([_experts(operator)] if is_product else [])}
        others = [d for d in range(len(operator.dims)) if d not in gone and d not in rows]
        dims, at_experts = self._dims(operator, rows, region)
        number = {d: 1 + at for at, d in enumerate(rows[: region.kept])}
        number |= {d: len(dims) + at for at, d in enumerate(others)}
        if is_product:
            number[_experts(operator)] = 0
        dims += [operator.dims[d] for d in others]

        def placed(operand: Operand, value: str) -> Operand:
            has_rows = any(operand.carries(d) for d in rows)
            axes = [
                at_experts if has_rows and at == 0 else tuple(number[d] for d in a) for at, a in enumerate(operand.axes)
            ]
            return replace(operand, value=value, axes=tuple(axes))

        reads: dict[str, str] = {}
        for operand in operator.inputs:
            if any(operand.carries(d) for d in rows):
                reads[operand.value] = self.moved.get((region.ids, operand.value)) or self._dispatched(
                    operator, operand, region
                )
        inputs = tuple(placed(o, reads.get(o.value, o.value)) for o in operator.inputs)
        made = {o.value: self._name(o.value) for o in operator.outputs}
        args, kwargs = _renamed(operator.args, reads), _renamed(operator.kwargs, reads)
        kind, target = operator.kind, operator.target
        if is_product:
            own = self.own[region.ids]
            inputs = (*inputs, Operand(own, ((0,),)))
            kind, target = "expert_mm", "ssdsl::expert_mm"
            args = (torch.ops.ssdsl.expert_mm.default, *args[1:], Ref(own))
        outputs = tuple(placed(o, made[o.value]) for o in operator.outputs)
        found = replace(
            operator,
            kind=kind,
            target=target,
            args=args,
            kwargs=kwargs,
            inputs=inputs,
            outputs=outputs,
            dims=tuple(dims),
        )
        self.operators.append(found)
        self.moved |= {(region.ids, value): name for value, name in made.items()}
        self.indices[operator.name] = (
            *self._experts_cut(region),
            *(replace(i, dim=number[i.dim]) for i in self._beside_experts(operator, region)),
        )
        for before, operand in zip(operator.outputs, outputs, strict=True):
            value = self.values[before.value]
            self.values[operand.value] = _value(found, operand, value.dtype, learns=value.differentiable)
            if self._is_read_outside(before.value, region):
                self._combined(found, before, operand, region)

    def _dims(self, operator: Operator, rows: tuple[int, ...], region: _Region) -> tuple[list[Dim], tuple[int, ...]]:
        """The dimensions of rows at their experts, and an axis that is made of them."""
        kept = [operator.dims[d] for d in rows[: region.kept]]
        slots = math.prod(operator.dims[d].size for d in rows[region.kept :]) // region.experts.size
        dims = [replace(region.experts, fixed=""), *kept, Dim("slots", slots, self._slots(region), BALANCED)]
        return dims, tuple(range(len(dims)))

    def _slots(self, region: _Region) -> int:
        """The class of the slots of a region."""
        number = -1 - self.regions.index(region)
        self.names.setdefault(number, "slots")
        return number

    @staticmethod
    def _experts_cut(region: _Region) -> Iterator[Index]:
        return (replace(i, dim=0) for i in region.indices)

    def _beside_experts(self, operator: Operator, region: _Region) -> Iterator[Index]:
        """The indices of an operator but for those by which experts are cut, or the rows of what is between them."""
        names = {i.name for i in region.indices}
        return (i for i in self.source.indices.get(operator.name, ()) if i.name not in names)

    def _is_read_outside(self, value: str, region: _Region) -> bool:
        graph = self.source.graph
        readers = {o.name for o in graph.operators if any(i.value == value for i in o.inputs)}
        return bool(readers - region.operators.keys()) or value in {graph.loss, *graph.outputs.values()} | {
            *graph.updates.values()
        }

    # -- there and back ----------------------------------------------------------------------------------------------

    def _dispatched(self, reader: Operator, operand: Operand, region: _Region) -> str:
        """The rows of a value of which only those of a part's experts are wanted."""
        name = self._name(operand.value)
        value = self.values[operand.value]
        args = (torch.ops.ssdsl.dispatch.default, Ref(operand.value), Ref(region.ids), Ref(self.own[region.ids]))
        self._add(name, "dispatch", args, reader, operand, region, gathers=False)
        self.values[name] = _value(self.operators[-1], self.operators[-1].outputs[0], value.dtype, value.differentiable)
        self.moved[region.ids, operand.value] = name
        return name

    def _combined(self, maker: Operator, before: Operand, operand: Operand, region: _Region) -> None:
        """The rows of a region that others read, where they were."""
        args = (torch.ops.ssdsl.combine.default, Ref(operand.value), Ref(region.ids), Ref(self.own[region.ids]))
        original = next(o for o in self.source.graph.operators if o.name == maker.name)
        self._add(f"{before.value}_combine", "combine", args, original, before, region, gathers=True)

    def _add(
        self,
        name: str,
        kind: str,
        args: tuple[Any, ...],
        beside: Operator,
        operand: Operand,
        region: _Region,
        *,
        gathers: bool,
    ) -> None:
        """An operator that moves rows to their experts, or from them, cut as the one beside it is."""
        rows = region.operators[beside.name]
        dims, at_experts = self._dims(beside, rows, region)
        number = {d: 1 + at for at, d in enumerate(rows[: region.kept])}
        for d in (*rows[region.kept :], *(d for axis in operand.axes[1:] for d in axis)):
            number[d] = len(dims)
            dims.append(replace(beside.dims[d], fixed=BALANCED if d in rows else ""))
        rest = [tuple(number[d] for d in axis) for axis in operand.axes[1:]]
        there, here = (at_experts, *rest), (tuple(number[d] for d in rows), *rest)
        ids, own = Operand(region.ids, (here[0],)), Operand(self.own[region.ids], ((0,),))
        given = Operand(self.moved[region.ids, operand.value], there) if gathers else Operand(operand.value, here)
        made = Operand(operand.value, here) if gathers else Operand(name, there)
        self.operators.append(
            Operator(
                name, kind, f"ssdsl::{kind}", beside.path, beside.source, Stage.COMPUTE, args, (),
                (given, ids, own), (made,), tuple(dims),
            )
        )  # fmt: skip
        cut = (replace(i, dim=number[i.dim]) for i in self._beside_experts(beside, region) if i.dim in number)
        self.indices[name] = (*self._experts_cut(region), *cut)
        self.placements[name] = self.source.placements[beside.name]
        self.beside[name] = beside.name


def _value(operator: Operator, operand: Operand, dtype: str, learns: bool) -> Value:
    """A value as its operator makes it."""
    sizes = tuple(tuple(operator.dims[d].size for d in axis) for axis in operand.axes)
    factors = tuple(tuple(operator.dims[d].cls for d in axis) for axis in operand.axes)
    return Value(operand.value, Origin.OPERATOR, tuple(map(math.prod, sizes)), dtype, learns, factors, sizes)


def _renamed(item: Any, names: dict[str, str]) -> Any:
    """Arguments that read values under other names."""
    match item:
        case Ref():
            return Ref(names.get(item.value, item.value))
        case tuple():
            return tuple(_renamed(i, names) for i in item)
    return item
