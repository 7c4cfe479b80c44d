"""Partial sums that stay partial: linear operators work on those in front of the loss, and on those of gradients.

`loss = sum / count` has no batch dimension, so a split by batch does not reach the division. Division by a constant
is linear: each part divides its own partial sum, and only the reported loss is added up. A term that no index splits
(a weight penalty) joins such a sum as the addend of the first part. An operator that is not linear runs once, on the
completed sum; so does one that mixes parts with a value that waits for all of them, and one that makes a buffer's new
value, which is written once.

The result of `combine`, a partial sum of rows that were with their experts, is carried through linear operators up to
the last one that makes it smaller: the weighted sum over the experts of a token comes before the sum over devices.

A sum over devices is carried on the same devices only: a value that goes to others is completed first.

The backward of every operator is linear in the gradient. An operator on weights only (a position embedding, a relative
position bias) can therefore read a partial gradient and return partial ones: the sum is taken once, with the gradients
of all other weights. So can operators that repeat rows for `dispatch`: the gradients of a token's rows are added before
they travel.

Worked example: `sum(up(x) ** 2) / 8 + 0.1 * penalty(w)` for x [8, 8], with the batch over the two devices of `dp`:

    %sum_1 = sum(%square) over (batch: dp) : f32[] partial {dp: sum}
    %div   = div(%sum_1) adds {dp: %sum_1} : f32[] partial {dp: sum}        each device divides its own sum
    %mul@1 = keep_first<dp>(1) %mul : f32[] partial {dp: sum}               the penalty, as the first device's addend
    %add   = add(%div, %mul@1) adds {dp: %div, %mul} : f32[] partial {dp: sum}

And a position embedding [6, 8], which every device reads whole for its half of the samples:

    %embedding_1 = embedding(%positions.weight, %arange) : f32[6, 8]; gradient partial {dp: sum}

No device sums that gradient: the weight's own is partial as well, and is reduced in a bucket with all others.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from ssdsl.ir.function import Carried, Split, names_along
from ssdsl.ir.layout import PARTIAL, REPLICATE, Layout, Submesh
from ssdsl.ir.value import Axis, Coordinate, Time, Type
from ssdsl.lower.operators.coordinates import coordinate_of, operator_splits
from ssdsl.lower.operators.operand_types import Axes, operand_shape, operand_types, place_in, waits_for_no_later
from ssdsl.lower.stages import Divided, Placed, Summed, Sunk, grown
from ssdsl.model.graph import Operand, Operator
from ssdsl.model.ops.rows import linear_with
from ssdsl.plan.plan import Index, Plan
from ssdsl.record import Record, replace

# -- sums in front of the loss -----------------------------------------------------------------------------------------


Partial = dict[Coordinate, Index]  # the coordinates along which a value is a sum, and the index that cut it there


def propagate_partial(lowering: Placed) -> Summed:
    """Adds `sums`, those that linear operators carry on.

    Also takes ordered indices in time away, in the plan, from operators of the loss that wait for all parts of them.
    """
    tails, written = lowering.graph.tails, frozenset(lowering.graph.updates.values())
    walk = _Walk(lowering, dict(lowering.cuts), tails.linear, tails.of_loss, _ordered_indices(lowering.plan), written)
    for operator in lowering.graph.computing:
        walk.operator(operator)
    plan = lowering.plan.cutting(walk.late) if walk.late else lowering.plan
    sums = {name: carried for name, carried in walk.splits.items() if carried}
    return grown(lowering, Summed, plan=plan, cuts=walk.cuts, sums=sums)


class _Made(Record):
    """The making of a value, shared by those of equal calls on any devices: its operator, splits and operand, the sums
    that it still lacks (`partial`), and the indices in time whose parts it all waited for (`waits`); with a `number` of
    its own."""

    number: int
    operator: Operator
    splits: tuple[Split, ...]
    operand: Operand
    partial: Partial
    waits: frozenset[str]


@dataclass(slots=True)
class _Walk:
    """A walk over the operators in order. `late` collects operators that lose indices, with the indices that they keep:
    they wait for all parts of the others. `written` are the values that buffers take. `made` and
    `places` say how and where each value was made so far."""

    lowering: Placed
    cuts: dict[str, tuple[Split, ...]]
    linear: frozenset[str]
    tail: frozenset[str]
    ordered: dict[str, frozenset[str]]
    written: frozenset[str]
    made: dict[str, _Made] = field(default_factory=dict)
    places: dict[str, Submesh] = field(default_factory=dict)
    splits: dict[str, tuple[Carried, ...]] = field(default_factory=dict)
    late: dict[str, tuple[Index, ...]] = field(default_factory=dict)
    known: dict[Hashable, tuple[_Made, ...]] = field(default_factory=dict)
    equal: dict[Hashable, _Made] = field(default_factory=dict)

    def operator(self, operator: Operator) -> None:
        """Visits an operator. Equal calls with equal inputs are looked up, unless they carry a sum or lose an index."""
        name, made, places = operator.name, self.made, self.places
        submesh = self.lowering.submeshes[name]
        inputs = [o.value for o in operator.inputs]
        read = [(made[value].number, places[value] is submesh) if value in made else None for value in inputs]
        call = self.lowering.graph.signatures[name], self.cuts[name], submesh.axes
        key = *call, self.ordered.get(name), name in self.linear, name in self.tail, tuple(read)
        if key not in self.known:
            self._operator(operator)
            if not self.splits[name] and name not in self.late:
                self.known[key] = tuple(made[o.value] for o in operator.outputs)
        else:
            made.update(zip([o.value for o in operator.outputs], self.known[key], strict=True))
        places.update([(o.value, submesh) for o in operator.outputs])

    def _operator(self, operator: Operator) -> None:
        submesh = self.lowering.submeshes[operator.name]
        own, splits = self.lowering.plan.of(operator.name).indices, self.cuts[operator.name]
        sums = [self._arriving(o.value, submesh) for o in operator.inputs]
        kept = self._kept(operator, own, sums, splits)
        if kept != own:
            self.late[operator.name] = own = kept
            self.cuts[operator.name] = splits = operator_splits(operator, own, submesh)
        taken = self._taken(operator, own, sums)
        self.splits[operator.name] = tuple(carried for carried, _ in taken.values())
        left = {coordinate_of(i, submesh): i for i in own if operator.summed(i.dim)}
        left |= {coordinate: index for coordinate, (_, index) in taken.items()}
        waits = self._waits(operator, sums, splits, set(taken))
        call = self.lowering.graph.signatures[operator.name]
        for number, output in enumerate(operator.outputs):
            key = call, number, splits, tuple(left.items()), waits
            if key not in self.equal:
                self.equal[key] = _Made(len(self.equal), operator, splits, output, left, waits)
            self.made[output.value] = self.equal[key]

    def _arriving(self, value: str, submesh: Submesh) -> Partial:
        """The sums that a value still lacks when an operator on a submesh reads it."""
        if value not in self.made:
            return {}
        axes, is_here = dict(submesh.axes), self.places[value] is submesh
        partial = self.made[value].partial.items()
        return {c: i for c, i in partial if (is_here if isinstance(c, Axis) else c.name not in axes)}

    def _taken(
        self, operator: Operator, own: tuple[Index, ...], sums: list[Partial]
    ) -> dict[Coordinate, tuple[Carried, Index]]:
        """The sums that an operator carries, by coordinate. Its operands are addends then; one that is whole is the
        addend of the first part."""
        values = self.lowering.graph.values
        is_scalar = not any(values[o.value].shape for o in operator.outputs)
        is_written = not self.written.isdisjoint(o.value for o in operator.outputs)
        if not operator.row.linear_in or not (is_scalar or operator.name in self.linear):
            return {}
        names = {i.name for i in own}
        taken: dict[Coordinate, tuple[Carried, Index]] = {}
        for coordinate in dict.fromkeys(c for s in sums for c in s):
            found = [s[coordinate] for s in sums if coordinate in s]
            together = linear_with(operator, [at for at, s in enumerate(sums) if coordinate in s])
            alike = len({(i.digit.parts, i.digit.sizes) for i in found}) == 1
            if is_written and isinstance(coordinate, Time):
                continue
            if coordinate.name not in names and alike and together and not self._delays(operator, sums, coordinate):
                addends = frozenset(operator.inputs[at].value for at in together)
                index = found[0]
                taken[coordinate] = Carried(coordinate, index.digit, addends), index
        return taken

    def _delays(self, operator: Operator, sums: list[Partial], coordinate: Coordinate) -> bool:
        """Whether other operands wait for all parts along a coordinate in time, while the addends need only their own
        part: carrying the sum would then delay the addends."""
        addends, others = set[str](), set[str]()
        for operand, arriving in zip(operator.inputs, sums, strict=True):
            if operand.value in self.made:
                (addends if coordinate in arriving else others).update(self.made[operand.value].waits)
        return isinstance(coordinate, Time) and coordinate.name in others - addends

    def _waits(
        self, operator: Operator, sums: list[Partial], own: tuple[Split, ...], carried: set[Coordinate]
    ) -> frozenset[str]:
        """The indices in time whose parts an operator needs all at once, directly or through a value that it reads."""
        splits = {s.coordinate: s for s in own}
        found: set[str] = set()
        for operand, arriving in zip(operator.inputs, sums, strict=True):
            if (made := self.made.get(operand.value)) is None:
                continue
            found |= made.waits
            found |= {c.name for c in arriving if isinstance(c, Time) and c not in carried}
            found.update(self._awaited(made, operator, operand, splits))
        return frozenset(found)

    def _awaited(
        self, made: _Made, operator: Operator, operand: Operand, splits: dict[Coordinate, Split]
    ) -> Iterator[str]:
        """Yields the indices in time whose parts an operand needs all at once."""
        for split in (s for s in made.splits if isinstance(s.coordinate, Time)):
            part, here = place_in(made.operator, split, made.splits, made.operand), splits.get(split.coordinate)
            read = None if here is None else place_in(operator, here, tuple(splits.values()), operand)
            if part is not None and not waits_for_no_later(part, read, operand_shape(operator, operand)):
                yield split.coordinate.name

    def _kept(
        self, operator: Operator, own: tuple[Index, ...], sums: list[Partial], splits: tuple[Split, ...]
    ) -> tuple[Index, ...]:
        """An operator's indices. One of the loss's tail loses those in time that an `order` names and whose parts it
        waits for: its task for the first part would already have to run behind all parts of the model."""
        ordered = self.ordered.get(operator.name, frozenset())
        if operator.name not in self.tail or not any(i.name in ordered for i in own):
            return own
        waits = self._waits(operator, sums, splits, {c for s in sums for c in s})
        in_time = {s.coordinate.name for s in splits if isinstance(s.coordinate, Time)}
        return tuple(i for i in own if i.name not in waits & ordered & in_time)


def _ordered_indices(plan: Plan) -> dict[str, frozenset[str]]:
    """For each operator, the indices that an `order` of the plan fixes for its tasks."""
    fixed: dict[int, set[str]] = {}
    for tasks in plan.ordered():
        fixed.setdefault(tasks.number, set()).update(n for n, _ in tasks.fixed)
    records = plan.operators.items() if fixed else ()
    indices = {sets: frozenset(n for k in sets for n in fixed.get(k, ())) for sets in {r.sets for _, r in records}}
    return {name: indices[record.sets] for name, record in records}


# -- gradients on their way to weights ---------------------------------------------------------------------------------


def sink_grad_reductions(lowering: Divided) -> Sunk:
    """Adds `sunk`: for each such operator, the axes and indices in time along which its outputs' gradients stay
    partial."""
    alone, moving = lowering.graph.alone, lowering.graph.tails.dispatched
    sunk: dict[str, frozenset[str]] = {}
    for operator in reversed(lowering.graph.computing):
        if not (operator.name in moving or all(o.value in alone for o in operator.outputs)):
            continue
        users = lowering.graph.readers_of(operator)
        if any(lowering.submeshes[c.name] != lowering.submeshes[operator.name] for c in users):
            continue
        split = {*names_along(lowering.splits[operator.name])}
        axes = {a for user in users for a in _partial(lowering, user, operator, sunk)}
        if axes - split:
            sunk[operator.name] = frozenset(axes - split)
    return grown(lowering, Sunk, sunk=sunk)


def _partial(lowering: Divided, user: Operator, producer: Operator, sunk: dict[str, frozenset[str]]) -> set[str]:
    axes = lowering.submeshes[user.name].axes
    outputs = {o.value for o in producer.outputs}
    names: set[str] = set()
    for operand in (o for o in user.inputs if o.value in outputs):
        _, gradient = operand_types(user, lowering.splits[user.name], operand, axes, is_output=False)
        names |= {a for (a, _), p in zip(axes, gradient.layout.places, strict=True) if p is PARTIAL}
    return names | sunk.get(user.name, frozenset())


def with_sunk(gradient: Type, axes: Axes, partial: frozenset[str]) -> Type:
    """A gradient's type with the coordinates `partial` added: as PARTIAL on axes where it was replicated, and as owed
    along indices in time."""
    if not partial:
        return gradient
    time = tuple(sorted(partial - {a for a, _ in axes}))
    places = tuple(
        PARTIAL if a in partial and p is REPLICATE else p
        for (a, _), p in zip(axes, gradient.layout.places, strict=True)
    )
    return replace(gradient, layout=Layout(places), owed=(*gradient.owed, *time))
