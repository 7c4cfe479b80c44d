"""The versions of a value in one function, and the conversions that make them of each other.

Consumers with the same need share one conversion, so that their gradients are summed before they travel.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ssdsl.ir.comm import Step, cuts_of
from ssdsl.ir.function import Conversion, Earlier, Extend, First, Reshard, Slice
from ssdsl.ir.layout import PARTIAL, REPLICATE, Layout, Placement, Shape, Shard, cut, regions_of
from ssdsl.ir.rows import slots_of
from ssdsl.ir.value import Name, TimeIndex, Type, Var
from ssdsl.lower.conversions.answer import Entering, Need, Received, ValueVersions, What
from ssdsl.lower.conversions.even import check_even, check_path, even_cut
from ssdsl.lower.conversions.reshard import reshard
from ssdsl.lower.conversions.route import NO_SHARES, Shares, with_shares
from ssdsl.lower.lowering import Lowering, Segment
from ssdsl.lower.operators.operand_types import inside, local_sizes
from ssdsl.model.graph import Value


@dataclass(slots=True)
class Within:
    """A value in one of the functions that have it, number `number` of them. Each version that it makes goes into the
    `answer`; `known` finds those made before."""

    lowering: Lowering
    value: Value
    segment: Segment
    number: int
    answer: ValueVersions
    needs: Sequence[Need] = ()  # all that operators of the function need of the value
    known: dict[tuple[object, ...], Var] = field(default_factory=dict)
    versions: int = 0

    # -- versions ----------------------------------------------------------------------------------------------------

    def version(self, shape: Shape, type_: Type, gradient: Type | None) -> Var:
        """A new version of the value."""
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

    def _index(self, name: str) -> TimeIndex:
        return next(t for t in self.segment.time if t.name == name)

    # -- conversions -------------------------------------------------------------------------------------------------

    def converted(self, var: Var, need: Need) -> Var:
        """The version that meets a need: first in its layout, then cut to the running parts along indices in time, then
        as an addend where the need is for one."""
        for part in self._one_by_one(var, need):
            var = self._resharded(var, part)
        before = var.type.time
        for name, digit in need.type.time:
            own = dict(before).get(name)
            if own is None:
                var = self._sliced(var, name, digit, before, need)
            elif own != digit:
                var = self._extended(var, name, digit, need)
        for name in _addends(var, need):
            var = self._addend(var, name, need)
        return var

    def _sliced(self, var: Var, name: str, digit: Shard, before: tuple[tuple[str, Shard], ...], need: Need) -> Var:
        """The running part along an index; `before` are the digits that the value had before any was cut out."""
        key = ("slice", var.name, name, digit, need.gradient is None)
        if key not in self.known:
            type_ = replace(var.type, time=(*var.type.time, (name, digit)))
            gradient = None
            if var.gradient is not None and need.gradient is not None:
                left = tuple(i for i, _ in need.type.time if i not in dict(type_.time))  # still to be sliced
                gradient = replace(
                    need.gradient, time=type_.time, owed=(*need.gradient.owed, *left, *_addends(var, need))
                )
            had = tuple(d for _, d in before)
            held = (*var.type.layout.shards(), *(d for _, d in var.type.time))
            check_even(self.lowering.plan, need.shape, digit, held)
            cut_out = tuple(d for n, d in var.type.time if n not in dict(before))
            here, *fixed = inside(Layout((digit, *var.type.layout.places, *cut_out)), had).shards()
            place = cut(need.shape.local(had), here, tuple(fixed))
            result = self.version(need.shape, type_, gradient)
            self.known[key] = self.make(Slice(var.name, result, self._index(name), place))
        return self.known[key]

    def _extended(self, var: Var, name: str, digit: Shard, need: Need) -> Var:
        """The running part of a value along an index, with the parts before it in front: the function reads back what
        it has left for them."""
        key = ("extend", var.name, name, digit, need.gradient is None)
        if key not in self.known:
            index, own = self._index(name), dict(var.type.time)[name]
            held = [*var.type.layout.shards(), *(s for i, s in var.type.time if i != name)]
            place = even_cut(self.lowering.plan, need.shape, own, held)
            before = regions_of(own, need.shape.factors[own.factor], own.parts) or ()
            starts = tuple(((0, start),) for ((start, _),) in before)
            earlier = self._in_time(var, name, replace(own, stride=1, at=starts), need)
            self.make(Received(earlier, self.number, var.name, (Earlier(index, place),)))
            result = self._in_time(var, name, digit, need)
            self.known[key] = self.make(Extend(var.name, earlier.name, result, index, place))
        return self.known[key]

    def _in_time(self, var: Var, name: str, digit: Shard, need: Need) -> Var:
        """A new version of a value with another part along an index in time."""
        time = tuple((i, digit if i == name else s) for i, s in var.type.time)
        gradient = None
        if var.gradient is not None and need.gradient is not None:
            gradient = replace(var.gradient, time=time)
        return self.version(need.shape, replace(var.type, time=time), gradient)

    def _addend(self, var: Var, name: str, need: Need) -> Var:
        """A value that is the same for all parts along an index as one addend of a sum over them."""
        key = ("first", var.name, name, need.gradient is None)
        if key not in self.known:
            type_ = replace(var.type, owed=(*var.type.owed, name))
            gradient = None
            if var.gradient is not None and need.gradient is not None:
                left = tuple(i for i in need.type.owed if i not in type_.owed)
                gradient = replace(need.gradient, owed=(*need.gradient.owed, *left))
            result = self.version(need.shape, type_, gradient)
            self.known[key] = self.make(First(var.name, result, self._index(name)))
        return self.known[key]

    # -- other layouts -----------------------------------------------------------------------------------------------

    def _one_by_one(self, var: Var, need: Need) -> Iterator[Need]:
        """Yields the needs to meet on the way to the last one: rows with their experts move along one axis of the
        devices after the other."""
        if slots_of(self.value) is not None:
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

    def _resharded(self, var: Var, need: Need) -> Var:
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
        """The need for one conversion that serves all operators which need the value so, although the gradients of some
        come back as addends of a sum: a whole gradient is one as well, if only the first device keeps it."""
        assert need.gradient is not None
        places = list(need.gradient.layout.places)
        for other in self.needs:
            if other.type == need.type and other.gradient is not None:
                for axis, (mine, theirs) in enumerate(zip(places, other.gradient.layout.places, strict=True)):
                    places[axis] = PARTIAL if mine is REPLICATE and theirs is PARTIAL else mine
        return replace(need, gradient=replace(need.gradient, layout=Layout(tuple(places))))

    def completed(self, var: Var, shape: Shape, shares: Shares = NO_SHARES) -> Var:
        """The value with its sums over devices taken and its regions joined, ready to go to other devices."""
        submesh = self.segment.submesh
        leaves = with_shares(var.type.layout.travelling(), submesh, shares)
        if leaves == var.type.layout:
            return var
        key = ("completed", var.name, leaves)
        if key not in self.known:
            gradient = var.gradient
            if gradient is not None:
                gradient = replace(gradient, layout=with_shares(gradient.layout.travelling(), submesh, shares))
            self.known[key] = self.make(self._reshard(var, shape, leaves, gradient))
        return self.known[key]

    def owing(self, var: Var, shape: Shape, gradient: Type) -> Var:
        """A version whose gradient has another type, so that its sums over devices are taken once for all readers."""
        assert var.gradient is not None
        if gradient == var.gradient:
            return var
        key = ("owing", var.name, gradient)
        if key not in self.known:
            self.known[key] = self.make(self._reshard(var, shape, var.type.layout, gradient))
        return self.known[key]

    def _reshard(self, var: Var, shape: Shape, layout: Layout, gradient: Type | None) -> Reshard:
        """A version in another layout, whose gradient, if it has one, is of this type."""
        common = tuple(s for _, s in var.type.time)
        part = shape.local(common)
        forward, backward = (
            self._steps(inside(var.type.layout, common), inside(layout, common), part),
            tuple[Step, ...](),
        )
        if gradient is not None and var.gradient is not None:
            produced, returned = inside(gradient.layout, common), inside(var.gradient.layout, common)
            backward = self._steps(produced, returned, part, sums=True)
        result = self.version(shape, replace(var.type, layout=layout), gradient)
        return Reshard(var.name, result, forward, backward)

    def _steps(self, before: Layout, after: Layout, shape: Shape, *, sums: bool = False) -> tuple[Step, ...]:
        submesh, itemsize = self.segment.submesh, self.value.itemsize
        return reshard(before, after, shape, submesh.axes, itemsize, self.lowering.links(submesh), sums=sums)


def _cuts_rows(place: Placement, shape: Shape) -> bool:
    """Whether a placement cuts the first axis of a tensor."""
    return isinstance(place, Shard) and shape.axis_of(place.factor) == 0


def _addends(var: Var, need: Need) -> tuple[str, ...]:
    """The indices in time along which a value is needed as an addend, but is not one yet."""
    return tuple(i for i in need.type.owed if i not in var.type.owed)
