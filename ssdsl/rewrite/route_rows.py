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
from collections.abc import Sequence
from dataclasses import dataclass, field

from ssdsl.model.graph import Dim, Operand, Operator, Ref, Stage, rename_refs
from ssdsl.model.ops.families.experts import TARGETS
from ssdsl.model.ops.op import Op
from ssdsl.model.ops.rows import ROWS
from ssdsl.model.target import TorchWord, target
from ssdsl.plan.edit import Edit, Numbers
from ssdsl.plan.plan import Index, Plan
from ssdsl.record import replace
from ssdsl.rewrite.row_regions import ROUTED, ExpertRegion, experts_of, regions_of
from ssdsl.rewrite.travelling_rows import with_travelling_rows

ARANGE = target("aten::arange", "end dtype layout device pin_memory")
BALANCED = "how many rows an expert has is known when it runs"
INTEGERS = Numbers("int64")


def route_rows(plan: Plan) -> Plan:
    """The plan in which rows are routed to their experts, if it cuts experts over devices."""
    regions = list[ExpertRegion]()
    for region in regions_of(plan):
        plan, travelling = with_travelling_rows(plan, region)
        regions.append(travelling)
    if not regions:
        return plan
    edit, region_of = Edit(plan), {name: region for region in regions for name in region.operators}
    for number, region in enumerate(regions):
        operators = [o for o in plan.graph.operators if region_of.get(o.name) is region]
        _Routing(edit, region, slots=-1 - number).route(operators)
    return edit.done()


@dataclass(slots=True)
class _Routing:
    """Rewrites the operators of one region. The rows of a value with their experts are a value with a name of its own;
    rows that were put back have the value's name.

    `slots` is the class of the region's slots, a negative number, which no class of the model has. `moved` has the
    names of rows with their experts by those of rows in their places, `own` is the name of the numbers of a part's
    experts, `counts` that of the number of rows of each expert. `numbers_of_parts` is the class of the numbers of the
    parts of a divided dimension of rows.
    """

    edit: Edit
    region: ExpertRegion
    slots: int
    moved: dict[str, str] = field(default_factory=dict)
    own: str = field(init=False)
    counts: str = field(init=False)
    numbers_of_parts: int | None = None

    def __post_init__(self) -> None:
        self.own, self.counts = f"{self.region.ids}_own", f"{self.region.ids}_counts"
        self.edit.dim_names[self.slots] = "slots"

    def route(self, operators: Sequence[Operator]) -> None:
        """Rewrites these operators of the region, which are in order."""
        self._number_experts()
        self._count(operators[0])
        for operator in operators:
            self._inside(operator)

    def _number_experts(self) -> None:
        """Inserts the constant with the numbers of all experts. Cut by experts, each part has the numbers of its own
        experts."""
        size, dim = self.region.experts.size, replace(self.region.experts, fixed="it is part of a constant")
        args = (ARANGE, size)
        kwargs = (("device", TorchWord("device", "cpu")), ("pin_memory", False))
        out = Operand(self.own, ((0,),))
        form = "arange", "aten::arange", "", "", Stage.CONSTANT
        numbers = Operator(self.own, *form, args, kwargs, (), (out,), (dim,), Op("aten::arange", "k! -> k!"))
        self.edit.insert(numbers, None, INTEGERS, beside=self.edit.graph.operators[0].name, before=True)

    # -- one operator of the region ----------------------------------------------------------------------------------

    def _inside(self, operator: Operator) -> None:
        """Rewrites an operator for rows with their experts: with a `dispatch` before it for each operand whose rows are
        still in their places, and a `combine` behind it for each result that is read outside of the region."""
        edit, region, rows = self.edit, self.region, self.region.operators[operator.name]
        is_product = operator.target == ROUTED
        gone = {*rows[region.kept :], *([experts_of(operator)] if is_product else [])}
        others = [d for d in range(len(operator.dims)) if d not in gone and d not in rows]
        dims, at_experts = self._dims(operator)
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

        operands = operator.inputs[:2] if is_product else operator.inputs
        with_rows = [o for o in operands if any(o.carries(d) for d in rows)]
        reads = {o.value: self.moved.get(o.value) or self._dispatched(operator, o) for o in with_rows}
        results = {o.value: edit.free(f"{o.value}_at_experts") for o in operator.outputs}
        self.moved |= results
        routed = replace(
            operator,
            args=rename_refs(operator.args, reads),
            kwargs=rename_refs(operator.kwargs, reads),
            inputs=tuple(placed(o, reads.get(o.value, o.value)) for o in operands),
            outputs=tuple(placed(o, results[o.value]) for o in operator.outputs),
            dims=tuple(dims),
        )
        edit.replace(self._as_expert_mm(routed, at_experts) if is_product else routed)
        edit.cut(operator.name, (*region.inside, *self._others(operator, number)))
        for operand in operator.outputs:
            if self._is_read_outside(operand.value):
                self._move(operator, operand, gathers=True)

    def _as_expert_mm(self, product: Operator, at_experts: tuple[int, ...]) -> Operator:
        """The product of rows that lie with their experts, and whose numbers are counted."""
        return replace(
            product,
            kind="expert_mm",
            target="ssdsl::expert_mm",
            args=(TARGETS["expert_mm"], *product.args[1:3], Ref(self.counts)),
            inputs=(*product.inputs, Operand(self.counts, (at_experts[:-1],))),
            row=ROWS["ssdsl::expert_mm"],
            observed=None,
        )

    def _dims(self, operator: Operator) -> tuple[list[Dim], tuple[int, ...]]:
        """The dimensions of rows with their experts: experts, the kept ones, slots; and the axis made of them."""
        region, rows = self.region, self.region.operators[operator.name]
        kept = [operator.dims[d] for d in rows[: region.kept]]
        slots = math.prod(operator.dims[d].size for d in rows[region.kept :]) // region.parts // region.experts.size
        if region.parts > 1:
            kept.append(self._number_of_part(operator.dims[rows[region.kept]]))
        dims = [replace(region.experts, fixed=""), *kept, Dim("slots", slots, self.slots, BALANCED)]
        return dims, tuple(range(len(dims)))

    def _number_of_part(self, divided: Dim) -> Dim:
        """The dimension of the numbers of the parts of a divided one, which the model does not have by itself."""
        if self.numbers_of_parts is None:
            self.numbers_of_parts = self.edit.new_class(divided.name)
        return Dim(divided.name, self.region.parts, self.numbers_of_parts)

    def _others(self, operator: Operator, number: dict[int, int]) -> tuple[Index, ...]:
        """The indices of an operator that cut none of its rows and experts, on its new dimensions."""
        indices, rows = self.edit.plan.of(operator.name).indices, self.region.operators[operator.name]
        others = (i for i in indices if i.name not in self.region.names and i.dim not in rows)
        return tuple(replace(i, dim=number[i.dim]) for i in others if i.dim in number)

    def _is_read_outside(self, value: str) -> bool:
        """Whether a value is read outside of the region, or is a result of the model."""
        graph = self.edit.graph
        readers = {o.name for o in graph.readers.get(value, ())}
        return bool(readers - self.region.operators.keys()) or value in graph.results

    # -- there and back ----------------------------------------------------------------------------------------------

    def _dispatched(self, reader: Operator, operand: Operand) -> str:
        """Inserts the `dispatch` of a value's rows to their experts, and returns the name of its result."""
        self.moved[operand.value] = name = self.edit.free(f"{operand.value}_at_experts")
        self._move(reader, operand, gathers=False)
        return name

    def _move(self, beside: Operator, operand: Operand, *, gathers: bool) -> None:
        """Inserts the `dispatch` that brings rows of a value to their experts, before the operator that reads them
        there; or the `combine` that puts them back where they were, behind the operator that makes them (`gathers`)."""
        rows, moved = self.region.operators[beside.name], self.moved[operand.value]
        dims, at_experts, number = self._around(beside)
        for d in (d for axis in operand.axes[1:] for d in axis):
            number[d] = len(dims)
            dims.append(beside.dims[d])
        rest = [tuple(number[d] for d in axis) for axis in operand.axes[1:]]
        here = Operand(operand.value, (tuple(number[d] for d in rows), *rest))
        there = Operand(moved, (at_experts, *rest))
        read, result = (there, here) if gathers else (here, there)
        inputs = (read, Operand(self.region.ids, (here.axes[0],)), Operand(self.own, ((0,),)))
        indices = (*self._outside(rows, number, gathers=gathers), *self._others(beside, number))
        numbers = Numbers.of(self.edit.values[operand.value])
        name, kind = (f"{operand.value}_combine", "combine") if gathers else (moved, "dispatch")
        self._insert(name, kind, beside, inputs, result, dims, indices, numbers)

    def _count(self, beside: Operator) -> None:
        """Inserts the `count_rows` of the region: the number of rows of each expert, cut as rows are before they
        travel."""
        region, rows = self.region, self.region.operators[beside.name]
        dims, at_experts, number = self._around(beside)
        each = math.prod(beside.dims[d].size for d in rows[region.kept :]) // region.parts
        inputs = Operand(region.ids, (tuple(number[d] for d in rows),)), Operand(self.own, ((0,),))
        result, indices = Operand(self.counts, (at_experts[:-1],)), self._outside(rows, number, gathers=False)
        self._insert(self.counts, "count_rows", beside, inputs, result, dims, indices, INTEGERS, each)

    def _around(self, beside: Operator) -> tuple[list[Dim], tuple[int, ...], dict[int, int]]:
        """The dimensions of an operator that has rows both in their places and with their experts, the axis of the
        latter, and the new numbers of the dimensions of the former."""
        region, rows = self.region, self.region.operators[beside.name]
        dims, at_experts = self._dims(beside)
        number = {d: 1 + at for at, d in enumerate(rows[: region.kept])}
        for at, d in enumerate(rows[region.kept :]):
            number[d] = len(dims)
            dims.append(beside.dims[d] if at == 0 and region.parts > 1 else replace(beside.dims[d], fixed=BALANCED))
        return dims, at_experts, number

    def _outside(self, rows: tuple[int, ...], number: dict[int, int], *, gathers: bool) -> tuple[Index, ...]:
        """The indices of an operator that brings rows to their experts, or back. Those of a divided dimension cut it in
        its place as the numbers of its parts at the experts; `dim` is the one of the result."""
        at_experts, in_place = 1 + self.region.kept, number[rows[self.region.kept]]
        here, there = (in_place, at_experts) if gathers else (at_experts, in_place)
        return tuple(replace(i, dim=here, also=there) if i.dim == at_experts else i for i in self.region.outside)

    def _insert(
        self,
        name: str,
        kind: str,
        beside: Operator,
        inputs: tuple[Operand, ...],
        result: Operand,
        dims: list[Dim],
        indices: tuple[Index, ...],
        numbers: Numbers,
        *arguments: int,
    ) -> None:
        """Inserts an operator on rows next to another one, with the plan's record of that: it runs on the same devices.
        It is ordered with what makes or reads the rows in their places."""
        called, args = f"ssdsl::{kind}", (TARGETS[kind], *(Ref(o.value) for o in inputs), *arguments)
        form = name, kind, called, beside.path, beside.source, Stage.COMPUTE, args, ()
        operator = Operator(*form, inputs, (result,), tuple(dims), ROWS[called])
        record, graph = self.edit.of(beside.name), self.edit.graph
        maker, readers = graph.makers.get(inputs[0].value), graph.readers.get(result.value, ())
        in_place = [o for o in readers if o.name not in self.region.operators] if kind == "combine" else [maker]
        near = [self.edit.of(o.name) for o in in_place if o is not None]
        sets = next((r.sets for r in near if r.place == record.place), record.sets)
        record = replace(record, indices=indices, whole=(), sets=sets)
        self.edit.insert(operator, record, numbers, beside=beside.name, before=kind != "combine")
