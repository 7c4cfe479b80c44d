"""Gives every operand the layout that its operator needs, by communication that is planned once per distinct need.

A value comes from the same function, from another function on the same devices, from other devices (a transfer), from
the place where a weight lives, or from the prologue (inputs, constants and data operators). Consumers with the same
need share one conversion, so that their gradients are summed before they travel.

A value of another function comes in as many inputs as there are ways to read it: one consumer may need its part along
an index in time while another one in the same function needs all parts made one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ssdsl.ir.comm import Message, Step, Transfer, cuts_of
from ssdsl.ir.function import (
    Carried,
    Concat,
    Earlier,
    Extend,
    First,
    Input,
    Merge,
    Op,
    Output,
    Parameter,
    Prepared,
    Reshard,
    Slice,
    Sum,
    Write,
)
from ssdsl.ir.layout import REPLICATE, Cut, Layout, Placement, Shape, Shard, Submesh, cut, regions_of
from ssdsl.ir.program import Loss, Result
from ssdsl.ir.rows import counts_of, slots_of
from ssdsl.ir.value import Name, TimeIndex, Type, Var
from ssdsl.lower.conversions.even import check_even, check_path, even_cut
from ssdsl.lower.conversions.prologue import PrologueBuilder
from ssdsl.lower.conversions.region_read import region_read
from ssdsl.lower.conversions.reshard import reshard
from ssdsl.lower.conversions.shares import NO_SHARES, shares_of, with_shares
from ssdsl.lower.conversions.transfer import keep_boxes, plan_move
from ssdsl.lower.errors import UpdateInParts
from ssdsl.lower.functions.draft import Draft, Made, Need, finished
from ssdsl.lower.lowering import Lowering
from ssdsl.lower.operators.operand_types import dims_of, inside, local_sizes
from ssdsl.lower.params.place_params import params_on
from ssdsl.model.graph import Operator, Origin
from ssdsl.text.diagnostic import PlanError


def insert_communication(lowering: Lowering) -> Lowering:
    """Adds the functions with their communication, the prologues, the transfers and the loss."""
    return _Builder(lowering).built()


class _Builder:
    """Walks the segments in order; what one function reads may add outputs to an earlier one."""

    def __init__(self, lowering: Lowering) -> None:
        self.lowering, self.graph = lowering, lowering.graph
        self.drafts = [Draft(n, s) for n, s in enumerate(lowering.segments)]
        self.made: dict[str, Made] = {}
        self.params = {
            submesh: params_on(lowering.params, submesh) for submesh in {s.submesh for s in lowering.segments}
        }
        self.prologue = PrologueBuilder(lowering)
        self.transfers: list[Transfer] = []
        self.updates = {value: buffer for buffer, value in self.graph.updates.items()}
        self.counts = counts_of(self.graph)

    def built(self) -> Lowering:
        for draft in self.drafts:
            for operator in draft.segment.operators:
                self._operator(draft, operator)
        made = self.made[self.graph.loss]
        outputs = self.drafts[made.function].outputs
        outputs.setdefault(
            made.var.name, Output(made.var.name, str(made.var.name), made.var.gradient is not None, read=False)
        )
        results = tuple(self._result(name, self.made[value]) for name, value in self.graph.outputs.items())
        functions = tuple(finished(d, self.lowering.learning, self.graph.loss) for d in self.drafts)
        returning = {i.message for f in functions for i in f.inputs if i.gradient}
        partial = made.var.type.layout.partial_axes(self.drafts[made.function].segment.submesh.axes)
        messages: tuple[Message, ...] = tuple(
            t if t.number in returning else replace(t, backward=None) for t in self.transfers
        )
        return replace(
            self.lowering,
            functions=functions,
            prologues=self.prologue.prologues(),
            messages=messages,
            loss=Loss(made.function, made.var.name, partial),
            results=results,
        )

    def _result(self, name: str, made: Made) -> Result:
        """Leaves a value that was asked for, its sums over devices taken."""
        source = self.drafts[made.function]
        var = self._completed(source, made, made.shape)
        output = self._leave(source, var)
        source.outputs[var.name] = output = replace(output, read=True)
        return Result(name, made.function, var.name, output.slot)

    # -- one operator ------------------------------------------------------------------------------------------------

    def _operator(self, draft: Draft, operator: Operator) -> None:
        typed, splits = self.lowering.typed[operator.name], self.lowering.splits[operator.name]
        learns = any(o.value in self.lowering.learning for o in operator.outputs)
        reads = []
        for operand, read in zip(operator.inputs, typed.reads, strict=True):
            need = Need(read.shape, read.type, read.gradient if learns else None)
            reads.append(self._source(draft, operand.value, need))
        results = []
        for operand, left in zip(operator.outputs, typed.results, strict=True):
            value = self.graph.values[operand.value]
            gradient = left.gradient if value.name in self.lowering.learning else None
            var = Var(draft.fresh(value.name), left.type, gradient, left.sizes, value.dtype)
            self.made[value.name] = Made(draft.number, operator, operand, left.shape, var)
            results.append(var)
        names = tuple(reads), tuple(results)
        draft.body.append(Op(operator.name, splits, *names, typed.kernel, typed.first, orders=operator.orders))
        for operand, left, var in zip(operator.outputs, typed.results, results, strict=True):
            if (buffer := self.updates.get(operand.value)) is not None:
                self._write(draft, buffer, var, left.shape, operator)

    def _write(self, draft: Draft, buffer: str, var: Var, shape: Shape, operator: Operator) -> None:
        """A buffer takes the value that an operator has left."""
        if var.type.owed:
            raise PlanError(UpdateInParts(None, buffer, var.type.owed[0], operator.module, operator.source))
        param = self.params[draft.segment.submesh].get(buffer)
        layout = param.layout if param is not None else Layout((REPLICATE,) * len(draft.segment.submesh.axes))
        type_ = replace(var.type, layout=layout)
        name = self._converted(draft, var, Need(shape, type_, None))
        slices: list[tuple[TimeIndex, Cut]] = []
        fixed = list(layout.shards())
        for index, digit in var.type.time:
            slices.append(
                (
                    next(t for t in draft.segment.time if t.name == index),
                    even_cut(self.lowering.plan, shape, digit, fixed),
                )
            )
            fixed.append(digit)
        draft.body.append(Write(buffer, name, tuple(slices)))

    def _var(self, draft: Draft, name: Name, shape: Shape, type_: Type, gradient: Type | None) -> Var:
        learns = name.value in self.lowering.learning
        sizes = local_sizes(shape, type_, draft.segment.submesh.axes)
        return Var(name, type_, gradient if learns else None, sizes, self.graph.values[name.value].dtype)

    def _source(self, draft: Draft, value: str, need: Need) -> Name:
        """The name under which the function has a value as an operator needs it."""
        if self.graph.values[value].origin in (Origin.WEIGHT, Origin.BUFFER):
            return self._converted(draft, self._parameter(draft, value, need.shape), need)
        if value not in self.made:
            return self._converted(draft, self._prepared(draft, value, need), need)
        made = self.made[value]
        if made.function == draft.number:
            return self._converted(draft, made.var, need)
        return self._converted(draft, self._input(draft, made, value, need), need)

    def _parameter(self, draft: Draft, weight: str, shape: Shape) -> Var:
        if weight not in draft.parameters:
            param = self.params[draft.segment.submesh][weight]
            gradient = Type(param.gradient, (), tuple(t.name for t in draft.segment.time))
            var = self._var(draft, draft.fresh(weight), shape, Type(param.layout), gradient)
            draft.parameters[weight] = Parameter(var)
        return draft.parameters[weight].var

    def _prepared(self, draft: Draft, value: str, need: Need) -> Var:
        source = self.prologue.provide(draft.segment.submesh, value, need.type.layout)
        if source.name not in draft.prepared:
            var = self._var(draft, draft.fresh(value), need.shape, source.type, None)
            draft.prepared[source.name] = Prepared(var, source.name)
        return draft.prepared[source.name].var

    # -- values of other functions -----------------------------------------------------------------------------------

    def _input(self, draft: Draft, made: Made, value: str, need: Need) -> Var:
        source = self.drafts[made.function]
        if source.segment.submesh == draft.segment.submesh:
            var = self._summed_once(draft, source, made, need)
            slot, type_, gradient, message = self._leave(source, var).slot, var.type, var.gradient, None
        else:
            type_, gradient, slot, message = self._received(draft, source, made, need)
        here = set(draft.segment.time)
        merges: list[Merge] = []
        held = [*type_.layout.shards(), *(s for _, s in type_.time)]
        digits, needed = dict(type_.time), dict(need.type.time)
        time: list[tuple[str, Shard]] = []  # that is left
        shared = []
        for index in sorted(source.segment.time, key=lambda t: t.name in needed):  # at last regions of what is joined
            digit = digits.get(index.name)
            wanted = index.name in need.type.owed if digit is None else (index.name, digit) in need.type.time
            if index in here and wanted:
                shared.append(index.name)
                time += [(index.name, digit)] if digit is not None else []
            elif digit is None:
                merges.append(Sum(index))
            else:
                held.remove(digit)
                if (region := region_read(index, digit, needed.get(index.name), need.shape, held)) is not None:
                    merges.append(region)
                    time.append((index.name, needed[index.name]))
                    held.append(needed[index.name])
                else:
                    merges.append(Concat(index, even_cut(self.lowering.plan, need.shape, digit, held)))
        key = (value, tuple(merges), None if gradient is None else gradient.layout)
        if key not in draft.converted:
            type_ = Type(type_.layout, tuple(time), tuple(i for i in type_.owed if i in shared))
            if gradient is not None:
                # every task that reads the whole of it gives an addend of its gradient
                owed = tuple(t.name for t in draft.segment.time if t.name not in shared and t.name not in dict(time))
                gradient = Type(gradient.layout, type_.time, owed)
            var = self._var(draft, draft.fresh(value), need.shape, type_, gradient)
            draft.converted[key] = var
            draft.inputs[var.name] = Input(
                var, source.number, slot, source.segment.time, tuple(merges), var.gradient is not None, message
            )
        return draft.converted[key]

    def _summed_once(self, draft: Draft, source: Draft, made: Made, need: Need) -> Var:
        """A value as parts that take turns read it: their addends of its gradient are summed up before devices exchange
        them, once for all parts."""
        var = made.var
        turns = {t.name for t in draft.segment.time if t not in source.segment.time} - dict(need.type.time).keys()
        if not turns or var.gradient is None or need.gradient is None or var.type.layout != need.type.layout:
            return var
        owing = replace(var.gradient, layout=need.gradient.layout)
        if owing == var.gradient:
            return var
        key = ("owing", var.name, owing)
        if key not in source.converted:
            value, common = var.name.value, tuple(s for _, s in var.type.time)
            before, after = inside(owing.layout, common), inside(var.gradient.layout, common)
            steps = self._steps(before, after, need.shape.local(common), value, source.segment.submesh, sums=True)
            result = self._var(source, source.fresh(value), need.shape, var.type, owing)
            source.body.append(Reshard(var.name, result, (), steps))
            source.converted[key] = result
        return source.converted[key]

    def _leave(self, source: Draft, var: Var) -> Output:
        """The output of a function under which other functions of its devices read a value."""
        if var.name not in source.outputs:
            source.outputs[var.name] = Output(var.name, str(var.name), var.gradient is not None)
        return source.outputs[var.name]

    def _received(self, draft: Draft, source: Draft, made: Made, need: Need) -> tuple[Type, Type | None, str, int]:
        """The type in which a value arrives from other devices, as its first consumer needs it; its slot there, and the
        number of its transfer."""
        value = made.var.name.value
        if value not in draft.received:
            time = tuple(s for _, s in made.var.type.time)
            unequal = {index.name for index in source.segment.time if index.sizes is not None}
            uneven = frozenset(s.factor for index, s in made.var.type.time if index in unequal)
            arrives = keep_boxes(need.type.layout.travelling(), need.shape, time, uneven)
            leaves = made.var.type.layout.travelling()
            here, there = source.segment.submesh, draft.segment.submesh
            itemsize = self.graph.values[value].itemsize
            shares = shares_of(self.lowering, (here, leaves), (there, arrives), need.shape, (time, uneven), itemsize)
            arrives = with_shares(arrives, there, shares)
            gradient = Layout(tuple(p if isinstance(p, Shard) else REPLICATE for p in arrives.places))
            left = self._completed(source, made, need.shape, shares)
            output = self._leave(source, left)
            slot = f"{value} for block{draft.number}"
            type_ = replace(made.var.type, layout=arrives)
            returned = None if made.var.gradient is None else replace(made.var.gradient, layout=gradient)
            draft.received[value] = type_, returned, slot, len(self.transfers)
            self.transfers.append(self._transfer(draft, source, made, left, output, need.shape, type_, returned))
        return draft.received[value]

    def _completed(self, source: Draft, made: Made, shape: Shape, shares: Mapping[str, Shard] = NO_SHARES) -> Var:
        """A value with its sums over devices taken and its regions joined, as it goes to other devices."""
        have, gradient, submesh = made.var.type, made.var.gradient, source.segment.submesh
        leaves = with_shares(have.layout.travelling(), submesh, shares)
        if leaves == have.layout:
            return made.var
        key = ("completed", made.var.name, leaves)
        if key not in source.converted:
            value = made.var.name.value
            common = tuple(s for _, s in have.time)
            before, part = inside(have.layout, common), shape.local(common)
            forward, backward = self._steps(before, inside(leaves, common), part, value, submesh), tuple[Step, ...]()
            if gradient is not None:
                needed = inside(gradient.layout, common)
                gradient = replace(gradient, layout=with_shares(gradient.layout.travelling(), submesh, shares))
                backward = self._steps(inside(gradient.layout, common), needed, part, value, submesh, sums=True)
            var = self._var(source, source.fresh(value), shape, replace(have, layout=leaves), gradient)
            source.converted[key] = var
            source.body.append(Reshard(made.var.name, var, forward, backward))
        return source.converted[key]

    def _transfer(
        self,
        draft: Draft,
        source: Draft,
        made: Made,
        left: Var,
        output: Output,
        shape: Shape,
        arrives: Type,
        returned: Type | None,
    ) -> Transfer:
        time = tuple(s for _, s in made.var.type.time)
        part = shape.local(time)
        a, b = source.segment.submesh, draft.segment.submesh
        forward = plan_move(inside(left.type.layout, time), a, inside(arrives.layout, time), b, part)
        backward = None
        if returned is not None and left.gradient is not None:
            needed = inside(left.gradient.layout, time)
            backward = plan_move(inside(returned.layout, time), b, needed, a, part)
        value, slot = made.var.name.value, draft.received[made.var.name.value][2]
        number, dtype = len(self.transfers), made.var.dtype
        moved = (forward, backward, dtype, source.segment.time, self._uneven(source, made))
        return Transfer(number, value, source.number, draft.number, a, b, output.slot, slot, *moved)

    def _uneven(self, source: Draft, made: Made) -> tuple[tuple[int, TimeIndex], ...]:
        """The factors of a value whose size varies with an index in time."""
        sizes = {t.name: t for t in source.segment.time if t.sizes}
        dims = dims_of(made.operand)
        return tuple(
            (dims.index(s.dim), sizes[s.coordinate.name])
            for s in self.lowering.splits[made.operator.name]
            if s.coordinate.name in sizes and not isinstance(s, Carried) and s.dim in dims
        )

    # -- conversions -------------------------------------------------------------------------------------------------

    def _converted(self, draft: Draft, var: Var, need: Need) -> Name:
        """Another layout of a value, then the parts of it that belong to the running parts of indices in time."""
        var = self._resharded(draft, var, need)
        known = dict(var.type.time)
        fixed = [*inside(var.type.layout, tuple(known.values())).shards()]
        part = need.shape.local(tuple(known.values()))
        for name, digit in need.type.time:
            if name in known:
                if known[name] != digit:
                    var = self._extended(draft, var, name, digit, need)
                continue
            key = ("slice", var.name, name, digit, need.gradient is None)
            (here,) = inside(Layout((digit,)), tuple(known.values())).shards()
            if key not in draft.converted:
                type_ = replace(var.type, time=(*var.type.time, (name, digit)))
                gradient = None
                if var.gradient is not None and need.gradient is not None:
                    left = tuple(i for i, _ in need.type.time if i not in dict(type_.time))  # still to be sliced
                    owed = (*need.gradient.owed, *left, *_addends(var, need))
                    gradient = replace(need.gradient, time=type_.time, owed=owed)
                result = self._var(draft, draft.fresh(var.name.value), need.shape, type_, gradient)
                index = next(t for t in draft.segment.time if t.name == name)
                held = (*var.type.layout.shards(), *(s for _, s in var.type.time))
                check_even(self.lowering.plan, need.shape, digit, held)
                draft.body.append(Slice(var.name, result, index, cut(part, here, tuple(fixed))))
                draft.converted[key] = result
            fixed.append(here)
            var = draft.converted[key]
        for name in _addends(var, need):
            var = self._addend(draft, var, name, need)
        return var.name

    def _extended(self, draft: Draft, var: Var, name: str, digit: Shard, need: Need) -> Var:
        """The part of a value along an index, behind the parts before it, which the function has left."""
        key = ("extend", var.name, name, digit, need.gradient is None)
        if key not in draft.converted:
            index = next(t for t in draft.segment.time if t.name == name)
            own = dict(var.type.time)[name]
            held = [*var.type.layout.shards(), *(s for i, s in var.type.time if i != name)]
            place = even_cut(self.lowering.plan, need.shape, own, held)
            before = regions_of(own, need.shape.factors[own.factor], own.parts) or ()
            starts = tuple(((0, start),) for ((start, _),) in before)
            slot = self._leave(draft, var).slot
            earlier = self._in_time(draft, var, name, replace(own, stride=1, at=starts), need)
            merges, learns = (Earlier(index, place),), earlier.gradient is not None
            draft.inputs[earlier.name] = Input(earlier, draft.number, slot, draft.segment.time, merges, learns)
            result = self._in_time(draft, var, name, digit, need)
            draft.body.append(Extend(var.name, earlier.name, result, index, place))
            draft.converted[key] = result
        return draft.converted[key]

    def _in_time(self, draft: Draft, var: Var, name: str, digit: Shard, need: Need) -> Var:
        """A new version of a value with another part along an index in time."""
        time = tuple((i, digit if i == name else s) for i, s in var.type.time)
        gradient = None
        if var.gradient is not None and need.gradient is not None:
            gradient = replace(var.gradient, time=time)
        return self._var(draft, draft.fresh(var.name.value), need.shape, replace(var.type, time=time), gradient)

    def _addend(self, draft: Draft, var: Var, name: str, need: Need) -> Var:
        """A value that is the same for all parts along an index as one addend of a sum over them."""
        key = ("first", var.name, name, need.gradient is None)
        if key not in draft.converted:
            type_ = replace(var.type, owed=(*var.type.owed, name))
            gradient = None
            if var.gradient is not None and need.gradient is not None:
                left = tuple(i for i in need.type.owed if i not in type_.owed)
                gradient = replace(need.gradient, owed=(*need.gradient.owed, *left))
            result = self._var(draft, draft.fresh(var.name.value), need.shape, type_, gradient)
            index = next(t for t in draft.segment.time if t.name == name)
            draft.body.append(First(var.name, result, index))
            draft.converted[key] = result
        return draft.converted[key]

    def _resharded(self, draft: Draft, var: Var, need: Need) -> Var:
        for part in self._one_by_one(var, need):
            var = self._resharded_at_once(draft, var, part)
        return var

    def _one_by_one(self, var: Var, need: Need) -> Iterator[Need]:
        """The needs on the way to one: rows at their experts go along one axis of the devices after the other."""
        if slots_of(self.graph.values[var.name.value]) is not None:
            have, want = var.type.layout, need.type.layout
            moving = [a for a, p in enumerate(have.places) if p != want.places[a] and _cuts_rows(p, need.shape)]
            for axis in moving[:-1]:
                have = have.replacing(axis, want.places[axis])
                gradient = None
                if var.gradient is not None and need.gradient is not None:
                    gradient = need.gradient
                    for later in moving[moving.index(axis) + 1 :]:
                        place = var.gradient.layout.places[later]
                        gradient = replace(gradient, layout=gradient.layout.replacing(later, place))
                yield replace(need, type=replace(need.type, layout=have), gradient=gradient)
        yield need

    def _resharded_at_once(self, draft: Draft, var: Var, need: Need) -> Var:
        common = tuple(s for _, s in var.type.time)
        have, want = inside(var.type.layout, common), inside(need.type.layout, common)
        learns = var.gradient is not None and need.gradient is not None
        produced = returned = want
        if var.gradient is not None and need.gradient is not None:
            produced, returned = inside(need.gradient.layout, common), inside(var.gradient.layout, common)
        if have == want and produced == returned:
            return var
        key = ("reshard", var.name, want, produced, learns)
        if key not in draft.converted:
            part, submesh = need.shape.local(common), draft.segment.submesh
            for shard in {*have.shards(), *want.shards()}:
                check_even(self.lowering.plan, need.shape, shard, common)
            for before, after in ((have, want), (produced, returned)):
                check_path(self.lowering.plan, need.shape, before, after)
            forward = self._steps(have, want, part, var.name.value, submesh)
            backward = self._steps(produced, returned, part, var.name.value, submesh, sums=True)
            type_ = replace(var.type, layout=need.type.layout)
            gradient = None
            if var.gradient is not None and need.gradient is not None:
                gradient = replace(var.gradient, layout=need.gradient.layout)
            rows = self._rows(draft, var, type_, (*forward, *backward))
            result = self._var(draft, draft.fresh(var.name.value), need.shape, type_, gradient)
            draft.body.append(Reshard(var.name, result, forward, backward, rows=rows))
            draft.converted[key] = result
        return draft.converted[key]

    def _rows(self, draft: Draft, var: Var, after: Type, steps: tuple[Step, ...]) -> tuple[Name, Name] | None:
        """How many rows a value has before and after some steps, where these take rows to other devices."""
        slots = slots_of(self.graph.values[var.name.value])
        if slots is None or not any(cut.dim == 0 for step in steps for cut in cuts_of(step)):
            return None
        made = self.made[self.counts[slots]]
        shape = made.shape

        def counts(type_: Type) -> Name:
            count = len(shape.factors)
            cut = (p if isinstance(p, Shard) and p.factor < count else REPLICATE for p in type_.layout.places)
            time = tuple((index, digit) for index, digit in type_.time if digit.factor < count)
            return self._source(draft, self.counts[slots], Need(shape, Type(Layout(tuple(cut)), time), None))

        return counts(var.type), counts(after)

    def _steps(
        self, before: Layout, after: Layout, shape: Shape, value: str, submesh: Submesh, *, sums: bool = False
    ) -> tuple[Step, ...]:
        itemsize = self.graph.values[value].itemsize
        return reshard(before, after, shape, submesh.axes, itemsize, self.lowering.links(submesh), sums=sums)


def _cuts_rows(place: Placement, shape: Shape) -> bool:
    """Whether a placement cuts the first axis of a tensor."""
    return isinstance(place, Shard) and shape.axis_of(place.factor) == 0


def _addends(var: Var, need: Need) -> tuple[str, ...]:
    """The indices in time along which a value is needed as an addend, and is whole."""
    return tuple(i for i in need.type.owed if i not in var.type.owed)
