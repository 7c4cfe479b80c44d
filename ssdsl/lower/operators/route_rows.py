"""Routes rows to experts: where a plan cuts products of experts, each part holds only the rows of its own experts.

A `routed_mm` of all rows, split by experts, gives zeros where a row's expert is in another part. So every part would
hold all rows, and operators between two such products would need a sum. Instead the rows are brought to their experts
before the first product, and put back after the last one:

    n = count_rows(experts, own)             how many rows each of the experts `own` has
    x = dispatch(rows, experts, own)         x: the rows of these experts, expert by expert
    y = expert_mm(act(expert_mm(x, w1, n)), w2, n)
    z = combine(y, experts, own)             zeros where other parts have rows: a sum over the parts

The rows then have a dimension of experts: an axis of [batch, seq, top] becomes [experts, batch, slots], cut by experts
as the weights are. The number of rows of an expert is known only at run time: `slots` is that number for equally loaded
experts, so that sizes in the program are those of a balanced routing. No operator between the products reads a size. If
a plan cuts the operators between them in another way, the products stay as they are.

Where each device has all rows, `dispatch` and `combine` are cut by experts, like the products. Where the same devices
cut rows and experts, they are cut by rows: each device sorts its own rows for all experts, and a change of layout from
`batch` to `experts` brings rows and counts to the devices of the experts (travelling_rows.py says when).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ssdsl.lower.operators.divide_dims import unused_class
from ssdsl.lower.operators.row_regions import ROUTED, ExpertRegion, experts_of, regions_of
from ssdsl.lower.operators.travelling_rows import with_travelling_rows
from ssdsl.lower.stages import Planned
from ssdsl.model.graph import Dim, Operand, Operator, Origin, Ref, Stage, Value, rename_refs
from ssdsl.model.memory.storage import Storage, laid_again, strides_in
from ssdsl.model.ops.families.experts import TARGETS
from ssdsl.model.ops.op import Op
from ssdsl.model.ops.rows import ROWS
from ssdsl.model.target import TorchWord, target
from ssdsl.plan.plan import Index, OpPlan, Plan
from ssdsl.record import replace

ARANGE = target("aten::arange", "end dtype layout device pin_memory")
BALANCED = "how many rows an expert has is known when it runs"


def route_rows(lowering: Planned) -> Planned:
    """Replaces the plan by one in which rows are routed to their experts, if it cuts experts over devices."""
    plan, regions = lowering.plan, list[ExpertRegion]()
    for region in regions_of(plan):
        plan, found = with_travelling_rows(plan, region)
        regions.append(found)
    return replace(lowering, plan=_Rewriting(plan, regions).plan()) if regions else lowering


# -- the new plan ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Rewriting:
    """Walks the operators in order and rewrites those of regions. A value's rows with their experts have a name of
    their own; put back they have the value's name. `ids` below is the value that names each row's expert."""

    source: Plan
    regions: list[ExpertRegion]
    operators: list[Operator] = field(default_factory=list)
    moved: dict[tuple[str, str], str] = field(default_factory=dict)  # ids, a value -> its rows with their experts
    own: dict[str, str] = field(default_factory=dict)  # ids -> the numbers of a part's own experts
    counts: dict[str, str] = field(default_factory=dict)  # ids -> the number of rows of each expert
    divided: dict[str, int] = field(default_factory=dict)  # ids -> the class of the numbers of parts of rows
    values: dict[str, Value] = field(init=False)
    storages: dict[str, Storage] = field(init=False)
    names: dict[int, str] = field(init=False)
    records: dict[str, OpPlan] = field(init=False)

    def __post_init__(self) -> None:
        graph = self.source.graph
        self.values, self.names = dict(graph.values), dict(graph.dim_names)
        self.records, self.storages = dict(self.source.operators), dict(graph.storages)

    def plan(self) -> Plan:
        """The plan with the rewritten graph, and the same statements about it."""
        graph = self.source.graph
        self.own = {region.ids: self._own(region) for region in self.regions}
        region_of = {name: region for region in self.regions for name in region.operators}
        for operator in graph.operators:
            region = region_of.get(operator.name)
            if region is None:
                self.operators.append(operator)
                self._lay(operator, {}, {})
            else:
                self._inside(operator, region)
        operators = tuple(self.operators)
        changed = replace(graph, operators=operators, values=self.values, dim_names=self.names, storages=self.storages)
        return replace(self.source, graph=changed, operators=self.records)

    def _own(self, region: ExpertRegion) -> str:
        """Adds the constant with the numbers of all experts, and returns its name. Cut by experts, each part has the
        numbers of its own experts."""
        name = f"{region.ids}_own"
        size, dim = region.experts.size, replace(region.experts, fixed="it is part of a constant")
        args = (ARANGE, size)
        kwargs = (("device", TorchWord("device", "cpu")), ("pin_memory", False))
        out = Operand(name, ((0,),))
        form = "arange", "aten::arange", "", "", Stage.CONSTANT
        made = Operator(name, *form, args, kwargs, (), (out,), (dim,), Op("aten::arange", "k! -> k!"))
        self.operators.append(made)
        self._make(_value(made, out, "int64", learns=False))
        return name

    def _make(self, value: Value) -> None:
        """Adds a value that has its own memory."""
        strides = strides_in(tuple(range(len(value.shape))), value.shape)
        self.values[value.name], self.storages[value.name] = value, Storage(value.name, strides)

    def _lay(self, operator: Operator, reads: Mapping[str, str], made: Mapping[str, str]) -> None:
        """Sets the storages of an operator's results; `reads` and `made` are the new names of operands and results."""
        self.storages |= laid_again(operator, self.source.graph, self.values, self.storages, reads, made)

    def _name(self, value: str) -> str:
        """A new name for a value's rows with their experts. A value may have several: one for each router."""
        name, count = f"{value}_at_experts", 1
        while name in self.values:
            count += 1
            name = f"{value}_at_experts_{count}"
        return name

    # -- one operator of a region ------------------------------------------------------------------------------------

    def _inside(self, operator: Operator, region: ExpertRegion) -> None:
        """Adds an operator of a region, on rows with their experts: a `dispatch` before it for each operand whose rows
        are still in their places, a `combine` after it for each result that is read outside of the region."""
        rows = region.operators[operator.name]
        is_product = operator.target == ROUTED
        gone = {*rows[region.kept :], *([experts_of(operator)] if is_product else [])}
        others = [d for d in range(len(operator.dims)) if d not in gone and d not in rows]
        dims, at_experts = self._dims(operator, rows, region)
        number = {d: 1 + at for at, d in enumerate(rows[: region.kept])}
        number |= {d: len(dims) + at for at, d in enumerate(others)}
        if is_product:
            number[experts_of(operator)] = 0
        dims += [operator.dims[d] for d in others]

        def placed(operand: Operand, value: str) -> Operand:
            has_rows = any(operand.carries(d) for d in rows)
            axes = [
                at_experts if has_rows and at == 0 else tuple(number[d] for d in a) for at, a in enumerate(operand.axes)
            ]
            return replace(operand, value=value, axes=tuple(axes))

        if region.ids not in self.counts:
            self._counted(operator, region)
        reads: dict[str, str] = {}
        given = operator.inputs[:2] if is_product else operator.inputs
        for operand in given:
            if any(operand.carries(d) for d in rows):
                reads[operand.value] = self.moved.get((region.ids, operand.value)) or self._dispatched(
                    operator, operand, region
                )
        inputs = tuple(placed(o, reads.get(o.value, o.value)) for o in given)
        made = {o.value: self._name(o.value) for o in operator.outputs}
        args, kwargs = rename_refs(operator.args, reads), rename_refs(operator.kwargs, reads)
        kind, target = operator.kind, operator.target
        if is_product:
            counts = self.counts[region.ids]
            inputs = (*inputs, Operand(counts, (at_experts[:-1],)))
            kind, target = "expert_mm", "ssdsl::expert_mm"
            args = (TARGETS["expert_mm"], *args[1:3], Ref(counts))
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
            row=ROWS[target] if is_product else operator.row,
            observed=None if is_product else operator.observed,
            signature=None,
        )
        self.operators.append(found)
        self.moved |= {(region.ids, value): name for value, name in made.items()}
        indices = (*region.inside, *self._others(operator, rows, number, region))
        self.records[operator.name] = replace(self.source.of(operator.name), indices=indices)
        for before, operand in zip(operator.outputs, outputs, strict=True):
            value = self.values[before.value]
            self._make(_value(found, operand, value.dtype, learns=value.differentiable))
        if not is_product:
            self._lay(operator, reads, made)
        for before, operand in zip(operator.outputs, outputs, strict=True):
            if self._is_read_outside(before.value, region):
                self._combined(found, before, operand, region)

    def _dims(
        self, operator: Operator, rows: tuple[int, ...], region: ExpertRegion
    ) -> tuple[list[Dim], tuple[int, ...]]:
        """The dimensions of rows with their experts: experts, the kept ones, slots; and the axis made of them."""
        kept = [operator.dims[d] for d in rows[: region.kept]]
        slots = math.prod(operator.dims[d].size for d in rows[region.kept :]) // region.parts // region.experts.size
        if region.parts > 1:
            kept.append(self._number_of_part(operator.dims[rows[region.kept]], region))
        dims = [replace(region.experts, fixed=""), *kept, Dim("slots", slots, self._slots(region), BALANCED)]
        return dims, tuple(range(len(dims)))

    def _slots(self, region: ExpertRegion) -> int:
        """The class of a region's slots: a negative number, which no class of the model has."""
        number = -1 - self.regions.index(region)
        self.names.setdefault(number, "slots")
        return number

    def _number_of_part(self, divided: Dim, region: ExpertRegion) -> Dim:
        """The dimension of the numbers of the parts of a divided one, which the model does not have by itself."""
        cls = self.divided.setdefault(region.ids, unused_class(self.source.graph) + len(self.divided))
        self.names.setdefault(cls, divided.name)
        return Dim(divided.name, region.parts, cls)

    def _others(
        self, operator: Operator, rows: tuple[int, ...], number: dict[int, int], region: ExpertRegion
    ) -> tuple[Index, ...]:
        """The indices of an operator that cut neither rows nor experts, with the new numbers of their dimensions."""
        indices = self.source.of(operator.name).indices
        others = (i for i in indices if i.name not in region.names and i.dim not in rows)
        return tuple(replace(i, dim=number[i.dim]) for i in others if i.dim in number)

    def _is_read_outside(self, value: str, region: ExpertRegion) -> bool:
        graph = self.source.graph
        readers = {o.name for o in graph.readers.get(value, ())}
        return bool(readers - region.operators.keys()) or value in graph.results

    # -- there and back ----------------------------------------------------------------------------------------------

    def _dispatched(self, reader: Operator, operand: Operand, region: ExpertRegion) -> str:
        """Adds the `dispatch` of a value's rows to their experts, and returns the name of its result."""
        name = self._name(operand.value)
        value = self.values[operand.value]
        args = (TARGETS["dispatch"], Ref(operand.value), Ref(region.ids), Ref(self.own[region.ids]))
        self._add(name, "dispatch", args, reader, operand, region, gathers=False)
        (out,) = self.operators[-1].outputs
        self._make(_value(self.operators[-1], out, value.dtype, value.differentiable))
        self.moved[region.ids, operand.value] = name
        return name

    def _combined(self, maker: Operator, before: Operand, operand: Operand, region: ExpertRegion) -> None:
        """Adds the `combine` that puts rows back where they were, for readers outside the region."""
        args = (TARGETS["combine"], Ref(operand.value), Ref(region.ids), Ref(self.own[region.ids]))
        original = next(o for o in self.source.graph.operators if o.name == maker.name)
        self._add(f"{before.value}_combine", "combine", args, original, before, region, gathers=True)
        self._make(self.values[before.value])

    def _add(
        self,
        name: str,
        kind: str,
        args: tuple[Any, ...],
        beside: Operator,
        operand: Operand,
        region: ExpertRegion,
        *,
        gathers: bool,
    ) -> None:
        """Adds an operator that brings rows to their experts, or back (`gathers`)."""
        rows = region.operators[beside.name]
        dims, at_experts, number = self._around(beside, region)
        for d in (d for axis in operand.axes[1:] for d in axis):
            number[d] = len(dims)
            dims.append(beside.dims[d])
        rest = [tuple(number[d] for d in axis) for axis in operand.axes[1:]]
        there, here = (at_experts, *rest), (tuple(number[d] for d in rows), *rest)
        ids, own = Operand(region.ids, (here[0],)), Operand(self.own[region.ids], ((0,),))
        given = Operand(self.moved[region.ids, operand.value], there) if gathers else Operand(operand.value, here)
        made = Operand(operand.value, here) if gathers else Operand(name, there)
        inputs, others = (given, ids, own), self._others(beside, rows, number, region)
        indices = (*self._outside(region, rows, number, gathers=gathers), *others)
        self._append(name, kind, args, beside, inputs, made, dims, indices)

    def _counted(self, beside: Operator, region: ExpertRegion) -> None:
        """Adds the `count_rows` of a region: the number of rows of each expert, cut as rows are before they travel."""
        name, rows = f"{region.ids}_counts", region.operators[beside.name]
        dims, at_experts, number = self._around(beside, region)
        ids, own = (tuple(number[d] for d in rows),), ((0,),)
        made = Operand(name, (at_experts[:-1],))
        each = math.prod(beside.dims[d].size for d in rows[region.kept :]) // region.parts
        args = (TARGETS["count_rows"], Ref(region.ids), Ref(self.own[region.ids]), each)
        inputs = (Operand(region.ids, ids), Operand(self.own[region.ids], own))
        indices = self._outside(region, rows, number, gathers=False)
        self._append(name, "count_rows", args, beside, inputs, made, dims, indices)
        self._make(_value(self.operators[-1], made, "int64", learns=False))
        self.counts[region.ids] = name

    def _around(self, beside: Operator, region: ExpertRegion) -> tuple[list[Dim], tuple[int, ...], dict[int, int]]:
        """The dimensions of an operator that has rows both in their places and with their experts, the axis of the
        latter, and the new numbers of the dimensions of the former."""
        rows = region.operators[beside.name]
        dims, at_experts = self._dims(beside, rows, region)
        number = {d: 1 + at for at, d in enumerate(rows[: region.kept])}
        for at, d in enumerate(rows[region.kept :]):
            number[d] = len(dims)
            dims.append(beside.dims[d] if at == 0 and region.parts > 1 else replace(beside.dims[d], fixed=BALANCED))
        return dims, at_experts, number

    def _outside(
        self, region: ExpertRegion, rows: tuple[int, ...], number: dict[int, int], *, gathers: bool
    ) -> tuple[Index, ...]:
        """The indices of an operator that brings rows to their experts, or back. Those of a divided dimension cut it in
        its place as the numbers of its parts at the experts; `dim` is the one of the result."""
        at_experts = 1 + region.kept
        (here, there) = (number[rows[region.kept]], at_experts) if gathers else (at_experts, number[rows[region.kept]])
        return tuple(replace(i, dim=here, also=there) if i.dim == at_experts else i for i in region.outside)

    def _append(
        self,
        name: str,
        kind: str,
        args: tuple[Any, ...],
        beside: Operator,
        inputs: tuple[Operand, ...],
        made: Operand,
        dims: list[Dim],
        indices: tuple[Index, ...],
    ) -> None:
        """Adds an operator with the plan's record of another one: it runs on the same devices."""
        stage, path, source = Stage.COMPUTE, beside.path, beside.source
        called = f"ssdsl::{kind}"
        own = tuple(dims), ROWS[called]
        found = Operator(name, kind, called, path, source, stage, args, (), inputs, (made,), *own)
        self.operators.append(found)
        self.records[name] = replace(self.source.of(beside.name), indices=indices, whole=())


def _value(operator: Operator, operand: Operand, dtype: str, learns: bool) -> Value:
    """The value that an operator makes as this operand."""
    sizes = tuple(tuple(operator.dims[d].size for d in axis) for axis in operand.axes)
    factors = tuple(tuple(operator.dims[d].cls for d in axis) for axis in operand.axes)
    return Value(operand.value, Origin.OPERATOR, tuple(map(math.prod, sizes)), dtype, learns, factors, sizes)
