"""Values that a function reads from another one: on the same devices, or over a transfer.

A function has one input of a value for each way in which it reads it: one consumer may need its part along an index in
time, while another one in the same function needs all parts joined.
"""

from dataclasses import dataclass, field, replace
from functools import partial

from ssdsl.ir.function import Concat, Merge, Sum
from ssdsl.ir.layout import Shard
from ssdsl.ir.value import Name, TimeIndex, Type, Var
from ssdsl.lower.conversions.answer import Need, Received, SentVersions
from ssdsl.lower.conversions.even import check_path, even_cut
from ssdsl.lower.conversions.region_read import region_read
from ssdsl.lower.conversions.route import Parts, RouteEnd, find_route, with_shares
from ssdsl.lower.conversions.within import Within
from ssdsl.lower.operators.operand_types import inside


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A value as it comes to a function: its type, its gradient's, the version that was left, and how it was sent."""

    type: Type
    gradient: Type | None
    left: Name
    sent: SentVersions | None = None


@dataclass(slots=True)
class ReadsBetween:
    """Reads of a value that an operator left as `made` in the function `home`."""

    home: Within
    made: Var
    arrivals: dict[int, _Arrival] = field(default_factory=dict)

    def entering(self, there: Within, need: Need) -> Var:
        """The version of the value with which another function begins to meet a need."""
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
        held = [*type_.layout.shards(), *(s for _, s in type_.time)]
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
                merges.append(Sum(index))
            else:
                held.remove(digit)
                if (region := region_read(index, digit, needed.get(index.name), need.shape, held)) is not None:
                    merges.append(region)
                    time.append((index.name, needed[index.name]))
                    held.append(needed[index.name])
                else:
                    merges.append(Concat(index, even_cut(plan, need.shape, digit, held)))
        return tuple(merges), tuple(time), shared

    def _arrival(self, there: Within, need: Need) -> _Arrival:
        if there.segment.submesh == self.home.segment.submesh:
            var = self._owing(there, need)
            return _Arrival(var.type, var.gradient, var.name)
        if there.number not in self.arrivals:  # one transfer per function, in the layout that its first consumer needs
            self.arrivals[there.number] = self._sent(there, need)
        return self.arrivals[there.number]

    def _owing(self, there: Within, need: Need) -> Var:
        """The version that another function on the same devices reads. Where several parts in time read it, their
        addends of its gradient are summed before devices exchange them: one exchange for all parts."""
        var, own = self.made, self.home.segment.time
        turns = {t.name for t in there.segment.time if t not in own} - dict(need.type.time).keys()
        if not turns or var.gradient is None or need.gradient is None or var.type.layout != need.type.layout:
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
