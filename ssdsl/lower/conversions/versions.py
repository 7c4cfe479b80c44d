"""Makes the versions of a value in one function: the conversions between them, and the reads between functions.

A version is the value with one type: `%x` as its operator leaves it, `%x@1` after an all_reduce.

Consumers with the same need share one conversion, so that their gradients are summed before they travel. A function has
one input of a value for each way in which it reads it: one consumer may need its part along an index in time, while
another one in the same function needs all parts joined.

Worked example: `y = down(relu(up(x)))`, [8, 8], with the inner dimension over the two devices of `tp`. A ReLU needs all
of y, and a sigmoid half of its rows, so y has three versions:

    %linear_1   = linear(%relu, %down.weight) over (ffn: tp) : f32[8, 8] partial {tp: sum}; gradient partial {}
    %linear_1@1 = all_reduce<tp>(64) %linear_1 : f32[8, 8]
    %linear_1@2 = reduce_scatter<tp>(64, dim 0) %linear_1 : f32[4, 8] at (batch: tp); backward all_gather<tp>(64, dim 0)

Both start from what the operator leaves. The gradient of @1 is whole already, so its backward has no step; that of @2
is half of the rows, and is gathered before the two are added.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from ssdsl.ir.comm import AllGather, AllReduce, KeepFirst, Narrow, Step, cuts_of
from ssdsl.ir.function import Conversion, Merge
from ssdsl.ir.layout import PARTIAL, REPLICATE, Layout, Placement, Shape, Shard, cut, regions_of
from ssdsl.ir.rows import slots_of
from ssdsl.ir.value import Name, TimeIndex, Type, Var, local_sizes
from ssdsl.lower.asks import Entering, Need, Received, SentVersions, ValueVersions, What
from ssdsl.lower.conversions.even import check_even, check_path, even_cut
from ssdsl.lower.conversions.region_read import region_read
from ssdsl.lower.conversions.reshard import exchange, reshard
from ssdsl.lower.conversions.route import NO_SHARES, Parts, RouteEnd, Shares, find_route, with_shares
from ssdsl.lower.operators.operand_types import inside
from ssdsl.lower.stages import Placed, Segment
from ssdsl.model.graph import Value
from ssdsl.plan.regions import Digit
from ssdsl.record import Record, replace


@dataclass(slots=True)
class Within:
    """A value in one of the functions that have it. `number` counts these functions; if one makes the value, it is 0.

    Each version that is made here is added to the `answer`. `known` are the versions made so far, by the kind of
    conversion, its operand and all that decides its result. An equal key is answered by the same version, so that
    operators with equal needs share it.
    """

    lowering: Placed
    value: Value
    segment: Segment
    number: int
    answer: ValueVersions
    needs: Sequence[Need] = ()  # all that operators of the function need of the value
    known: dict[tuple[object, ...], Var] = field(default_factory=dict)
    versions: int = 0

    # -- versions ----------------------------------------------------------------------------------------------------

    def version(self, shape: Shape, type_: Type, gradient: Type | None) -> Var:
        """A new version, which the `answer` does not have yet. A value that has no gradient ignores `gradient`."""
        sizes = local_sizes(shape, type_, self.segment.submesh.axes)
        name = Name("", self.versions)
        self.versions += 1
        return Var(
            name, type_, gradient if self.value.name in self.lowering.learning else None, sizes, self.value.dtype
        )

    def given(self, shape: Shape, layout: Layout, gradient: Type | None) -> Var:
        """The version that enters the function in a layout: a weight, or a value of the prologue."""
        key = ("given", layout)
        if key not in self.known:
            self.known[key] = self.make(Entering(self.version(shape, Type(layout), gradient)))
        return self.known[key]

    def make(self, what: What) -> Var:
        """Adds a version to the answer, and returns it."""
        var = what.result if isinstance(what, Conversion) else what.var
        self.answer.made[self.number, var.name.version] = what
        return var

    # -- conversions -------------------------------------------------------------------------------------------------

    def converted(self, var: Var, need: Need) -> Var:
        """The version that meets a need: first in its layout, then cut to the running parts along indices in time, then
        as an addend if the need is for one."""
        for part in self._one_by_one(var, need):
            var = self._resharded(var, part)
        before = var.type.time
        for name, digit in need.type.time:
            own = dict(before).get(name)
            if own is None:
                var = self._sliced(var, name, digit, before, need)
            elif own != digit:
                var = self._extended(var, name, digit, need)
        for name in need.type.owed:
            var = var if name in var.type.owed else self._addend(var, name, need)
        return var

    def _sliced(self, var: Var, name: str, digit: Shard, before: tuple[tuple[str, Shard], ...], need: Need) -> Var:
        """The running part along an index. `before` are the digits in time that the value had before this need's were
        cut out, one after the other."""
        had = tuple(d for _, d in before)
        check_even(self.lowering.plan, need.shape, digit, var.type.digits)
        cut_out = tuple(d for n, d in var.type.time if n not in dict(before))
        here, *others = inside(Layout((digit, *var.type.layout.places, *cut_out)), had).shards()
        part, fixed = need.shape.local(had), tuple(others)
        step = Narrow((name,), part.local(fixed).numel, cut(part, here, fixed), in_time=True)
        return self._stepped(var, step, replace(var.type, time=(*var.type.time, (name, digit))), need)

    def _addend(self, var: Var, name: str, need: Need) -> Var:
        """A value that is the same for all parts along an index, as addends of a sum over them: the first part has the
        value, the others zeros."""
        step = KeepFirst((name,), need.shape.local(var.type.digits).numel, in_time=True)
        return self._stepped(var, step, replace(var.type, owed=(*var.type.owed, name)), need)

    def _stepped(self, var: Var, step: Step, type_: Type, need: Need) -> Var:
        """The version of this type that one step in time makes. Its gradient is that of the need, but along indices
        whose steps follow still an addend of a sum."""
        key = ("in time", var.name, step, need.gradient is None)
        if key not in self.known:
            gradient = None
            if var.gradient is not None and need.gradient is not None:
                left = [i for i, _ in need.type.time if i not in dict(type_.time)]
                left += [i for i in need.type.owed if i not in type_.owed]
                gradient = replace(need.gradient, time=type_.time, owed=(*need.gradient.owed, *left))
            self.known[key] = self.make(Conversion(var.name, self.version(need.shape, type_, gradient), (step,)))
        return self.known[key]

    def _extended(self, var: Var, name: str, digit: Shard, need: Need) -> Var:
        """The running part of a value along an index, joined behind all parts before it. Earlier tasks of the function
        have left these; the function reads them as an input of its own."""
        key = ("extend", var.name, name, digit, need.gradient is None)
        if key not in self.known:
            own = dict(var.type.time)[name]
            fixed = tuple(d for d in var.type.digits if d != own)
            check_even(self.lowering.plan, need.shape, own, fixed)
            parts, all_ = (regions_of(d, need.shape.factors[d.factor], d.digit.parts) or () for d in (own, digit))
            starts = tuple(((0, start),) for ((start, _),) in parts)  # for each part, all positions in front of it
            before, joined = (
                exchange((name,), own.factor, parts, at, need.shape, fixed, in_time=True) for at in (starts, all_)
            )
            earlier = self._in_time(var, name, Shard(own.factor, Digit(len(starts), at=starts)), need)
            self.make(Received(earlier, self.number, var.name, (before,)))
            result = self._in_time(var, name, digit, need)
            self.known[key] = self.make(Conversion(var.name, result, (joined,), also=(earlier.name,)))
        return self.known[key]

    def _in_time(self, var: Var, name: str, digit: Shard, need: Need) -> Var:
        """A new version of a value with another part along an index in time."""
        time = tuple((i, digit if i == name else s) for i, s in var.type.time)
        gradient = None
        if var.gradient is not None and need.gradient is not None:
            gradient = replace(var.gradient, time=time)
        return self.version(need.shape, replace(var.type, time=time), gradient)

    # -- other layouts -----------------------------------------------------------------------------------------------

    def _one_by_one(self, var: Var, need: Need) -> Iterator[Need]:
        """Yields the needs to meet in turn, the given one last. Only rows with their experts need several: where one
        all_to_all does not take them there over all axes at once, they move along one axis after the other."""
        if slots_of(self.value) is not None and not self._moves_once(var, need):
            have, want = var.type.layout, need.type.layout
            moving = [a for a, p in enumerate(have.places) if p != want.places[a] and _cuts_rows(p, need.shape)]
            for axis in moving[:-1]:
                have = have.replacing(axis, want.places[axis])
                gradient = None
                if var.gradient is not None and need.gradient is not None:
                    # along axes that are moved later, the gradient has come back all the way
                    gradient = need.gradient
                    for later in moving[moving.index(axis) + 1 :]:
                        place = var.gradient.layout.places[later]
                        gradient = replace(gradient, layout=gradient.layout.replacing(later, place))
                yield replace(need, type=replace(need.type, layout=have), gradient=gradient)
        yield need

    def _moves_once(self, var: Var, need: Need) -> bool:
        """Whether rows get to a need, and their gradient back, in one step each. Their numbers are known at its two
        ends alone."""
        gradient = None
        if var.gradient is not None and need.gradient is not None:
            gradient = replace(var.gradient, layout=need.gradient.layout)
        steps = self._paths(var, need.shape, need.type.layout, gradient)
        return all(sum(any(c.dim == 0 for c in cuts_of(step)) for step in one) <= 1 for one in steps)

    def _resharded(self, var: Var, need: Need) -> Var:
        """The version in the need's layout, whose gradient comes in the layout of the need's gradient. Layouts are
        compared inside one task: without the digits in time that the value has."""
        common = tuple(s for _, s in var.type.time)
        have, want = inside(var.type.layout, common), inside(need.type.layout, common)
        learns = var.gradient is not None and need.gradient is not None
        produced = returned = want
        if var.gradient is not None and need.gradient is not None:
            produced, returned = inside(need.gradient.layout, common), inside(var.gradient.layout, common)
        if have == want and produced == returned:
            return var
        key = ("reshard", var.name, want, produced, learns)
        if key not in self.known and learns and have != want and (shared := self._shared(need)) != need:
            # the conversion that other operators use, then a version of equal layout with this operator's gradient
            whole = self._resharded(var, shared)
            assert need.gradient is not None and whole.gradient is not None
            self.known[key] = self.owing(whole, need.shape, replace(whole.gradient, layout=need.gradient.layout))
        if key not in self.known:
            for shard in {*have.shards(), *want.shards()}:
                check_even(self.lowering.plan, need.shape, shard, common)
            for before, after in ((have, want), (produced, returned)):
                check_path(self.lowering.plan, need.shape, before, after)
            gradient = None
            if var.gradient is not None and need.gradient is not None:
                gradient = replace(var.gradient, layout=need.gradient.layout)
            made = self._reshard(var, need.shape, need.type.layout, gradient)
            self.known[key] = self.make(made)
            moves_rows = any(c.dim == 0 for step in (*made.forward, *made.backward) for c in cuts_of(step))
            if moves_rows and slots_of(self.value) is not None:
                moved = len(self.answer.versions), var.type, made.result.type
                self.answer.moves_rows[self.number, made.result.name.version] = moved
        return self.known[key]

    def _shared(self, need: Need) -> Need:
        """The need with a gradient that all operators with this need can return: an addend of a sum along each axis
        along which one of them returns an addend. A whole gradient becomes an addend if only the first device keeps it.
        So one conversion serves them all."""
        assert need.gradient is not None
        places = list(need.gradient.layout.places)
        for other in self.needs:
            if other.type == need.type and other.gradient is not None:
                for axis, (mine, theirs) in enumerate(zip(places, other.gradient.layout.places, strict=True)):
                    places[axis] = PARTIAL if mine is REPLICATE and theirs is PARTIAL else mine
        return replace(need, gradient=replace(need.gradient, layout=Layout(tuple(places))))

    def completed(self, var: Var, shape: Shape, shares: Shares = NO_SHARES) -> Var:
        """The value with its pending sums reduced and its regions gathered, ready to send to other devices; along the
        axes of `shares` each device keeps a share to send."""
        submesh = self.segment.submesh
        leaves = with_shares(var.type.layout.travelling(), submesh, shares)
        if leaves == var.type.layout:
            return var
        gradient = var.gradient
        if gradient is not None:
            gradient = replace(gradient, layout=with_shares(gradient.layout.travelling(), submesh, shares))
        return self._in_layout(var, shape, leaves, gradient)

    def owing(self, var: Var, shape: Shape, gradient: Type) -> Var:
        """A version of equal layout whose gradient may come as addends (`gradient`), so that they are summed over
        devices once for all readers."""
        assert var.gradient is not None
        return var if gradient == var.gradient else self._in_layout(var, shape, var.type.layout, gradient)

    def _in_layout(self, var: Var, shape: Shape, layout: Layout, gradient: Type | None) -> Var:
        """The version of these types, made once."""
        key = ("layout", var.name, layout, gradient)
        if key not in self.known:
            self.known[key] = self.make(self._reshard(var, shape, layout, gradient))
        return self.known[key]

    def _reshard(self, var: Var, shape: Shape, layout: Layout, gradient: Type | None) -> Conversion:
        """A version in another layout, whose gradient, if it has one, is of this type."""
        forward, backward = self._paths(var, shape, layout, gradient)
        result = self.version(shape, replace(var.type, layout=layout), gradient)
        return Conversion(var.name, result, forward, backward)

    def _paths(
        self, var: Var, shape: Shape, layout: Layout, gradient: Type | None
    ) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
        """The steps to another layout, and those of a gradient of this type back."""
        common = tuple(s for _, s in var.type.time)
        part = shape.local(common)
        forward = self._steps(inside(var.type.layout, common), inside(layout, common), part)
        if gradient is None or var.gradient is None:
            return forward, ()
        produced, returned = inside(gradient.layout, common), inside(var.gradient.layout, common)
        return forward, self._steps(produced, returned, part, sums=True)

    def _steps(self, before: Layout, after: Layout, shape: Shape, *, sums: bool = False) -> tuple[Step, ...]:
        submesh, itemsize = self.segment.submesh, self.value.itemsize
        return reshard(before, after, shape, submesh.axes, itemsize, self.lowering.links(submesh), sums=sums)


def _cuts_rows(place: Placement, shape: Shape) -> bool:
    """Whether a placement cuts the first axis of a tensor."""
    return isinstance(place, Shard) and shape.axis_of(place.factor) == 0


# -- reads between functions -------------------------------------------------------------------------------------------


class _Arrival(Record):
    """A value as it comes to a function: its type, its gradient's, the version that was left, and how it was sent."""

    type: Type
    gradient: Type | None
    left: Name
    sent: SentVersions | None = None


@dataclass(slots=True)
class ReadsBetween:
    """Reads of a value by other functions. An operator of the function `home` left it as `made`; `arrivals` are its
    ways to other devices, by the number of the function that reads it there."""

    home: Within
    made: Var
    arrivals: dict[int, _Arrival] = field(default_factory=dict)

    def entering(self, there: Within, need: Need) -> Var:
        """The version with which the value enters another function, which converts it further to meet the need."""
        arrival = self._arrival(there, need)
        merges, left, shared = self._merges(there, need, arrival.type)
        gradient = arrival.gradient
        key = ("input", merges, None if gradient is None else gradient.layout)
        if key not in there.known:
            owed = tuple(i for i in arrival.type.owed if i in shared)
            type_ = Type(arrival.type.layout, left, owed)
            if gradient is not None:
                # every task that reads the whole of it gives an addend of its gradient
                owed = tuple(t.name for t in there.segment.time if t.name not in shared and t.name not in dict(left))
                gradient = Type(gradient.layout, left, owed)
            var = there.version(need.shape, type_, gradient)
            there.known[key] = there.make(Received(var, self.home.number, arrival.left, merges, arrival.sent))
        return there.known[key]

    def _merges(
        self, there: Within, need: Need, type_: Type
    ) -> tuple[tuple[Merge, ...], tuple[tuple[str, Shard], ...], set[str]]:
        """The merges that turn the producer's parts in time into the parts that are needed; the digits in time that are
        left; and the indices that both functions have in common."""
        here, plan = set(there.segment.time), there.lowering.plan
        merges: list[Merge] = []
        fixed = [*type_.digits]  # those that the merged value still has
        digits, needed = dict(type_.time), dict(need.type.time)
        time: list[tuple[str, Shard]] = []
        shared = set[str]()
        # indices of the need come last, so that regions are taken of a value that is already joined along the others
        for index in sorted(self.home.segment.time, key=lambda t: t.name in needed):
            digit = digits.get(index.name)
            wanted = index.name in need.type.owed if digit is None else (index.name, digit) in need.type.time
            if index in here and wanted:
                shared.add(index.name)
                time += [(index.name, digit)] if digit is not None else []
            elif digit is None:
                merges.append(AllReduce((index.name,), need.shape.local(tuple(fixed)).numel, in_time=True))
            else:
                fixed.remove(digit)
                part, held = needed.get(index.name), tuple(fixed)
                if (region := region_read(index.name, digit, part, need.shape, held)) is not None:
                    merges.append(region)
                    time.append((index.name, needed[index.name]))
                    fixed.append(needed[index.name])
                else:
                    place, elements = even_cut(plan, need.shape, digit, held), need.shape.local(held).numel
                    merges.append(AllGather((index.name,), elements, place, in_time=True))
        return tuple(merges), tuple(time), shared

    def _arrival(self, there: Within, need: Need) -> _Arrival:
        """The value as it comes to another function: left on the same devices, or sent to others."""
        if there.segment.submesh == self.home.segment.submesh:
            var = self._owing(there, need)
            return _Arrival(var.type, var.gradient, var.name)
        if there.number not in self.arrivals:  # one transfer per function, in the layout that its first consumer needs
            self.arrivals[there.number] = self._sent(there, need)
        return self.arrivals[there.number]

    def _owing(self, there: Within, need: Need) -> Var:
        """The version that another function on the same devices reads. If several parts in time read it, their addends
        of its gradient are summed before devices exchange them: one exchange for all parts."""
        var, own = self.made, self.home.segment.time
        repeats = {t.name for t in there.segment.time if t not in own} - dict(need.type.time).keys()
        if not repeats or var.gradient is None or need.gradient is None or var.type.layout != need.type.layout:
            return var
        return self.home.owing(var, need.shape, replace(var.gradient, layout=need.gradient.layout))

    # -- transfers ---------------------------------------------------------------------------------------------------

    def _sent(self, there: Within, need: Need) -> _Arrival:
        """The value on the way to other devices, in the layout that its first consumer there needs."""
        made, source, target = self.made, self.home.segment, there.segment
        uneven = self._uneven()
        varying = frozenset(factor for factor, _ in uneven)
        parts = Parts(need.shape, tuple(s for _, s in made.type.time), varying, there.value.itemsize)
        arrives = parts.boxes(need.type.layout.travelling())
        produced = None if need.gradient is None else parts.boxes(need.gradient.layout)
        needed = None if made.gradient is None else made.gradient.layout
        for layout in filter(None, (made.type.layout, needed, produced)):
            here = inside(layout, parts.times)
            check_path(there.lowering.plan, parts.size, here, here.travelling())
        ends = RouteEnd(source.submesh, made.type.layout, needed), RouteEnd(target.submesh, arrives, produced)
        route = find_route(there.lowering, *ends, parts)
        arrives = with_shares(arrives, target.submesh, route.arriving)
        var = self.home.completed(made, need.shape, route.leaving)
        move = partial(parts.move, broadcast=route.broadcast)
        forward, backward = move(source.submesh, var.type.layout, target.submesh, arrives), None
        type_, back = replace(made.type, layout=arrives), None
        if made.gradient is not None and var.gradient is not None:
            back = replace(made.gradient, layout=arrives)
            backward = move(target.submesh, arrives, source.submesh, var.gradient.layout)
        return _Arrival(type_, back, var.name, SentVersions(forward, backward, uneven))

    def _uneven(self) -> tuple[tuple[int, TimeIndex], ...]:
        """The factors of the value whose size varies with an index in time."""
        sizes = {t.name: t for t in self.home.segment.time if t.sizes is not None}
        return tuple((digit.factor, sizes[name]) for name, digit in self.made.type.time if name in sizes)
