"""Finds schedules for another number of parts than the plan cuts: `one_f_one_b(stage, 8)` where `m` has four."""

from collections.abc import Iterator

from ssdsl.plan.context import Context
from ssdsl.plan.errors.traced import Traced
from ssdsl.plan.eval.values import Selection, Value
from ssdsl.plan.facts import Facts
from ssdsl.plan.plan import ClockOrder
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Span

FEWEST = 2  # parts in order: a row for one part says something of this one


def note_turn(ctx: Context, span: Span, values: list[Value]) -> None:
    """Notes the parts that one turn of an order names and that do not exist, if it names no others.

    A schedule may begin before the first part and end behind the last: a turn then also names a part that exists, or
    other turns name parts before the first one.
    """
    place = ctx.stack.site or span
    steps = [_outside(ctx, value) for value in values]
    if any(at < 0 for step in steps for at, _, _ in step):
        ctx.facts.before_first.add(place)
    if all(steps):
        at, name, count = min(min(step) for step in steps)
        key = place, name, count
        ctx.facts.past_last[key] = ctx.facts.past_last.get(key, frozenset()) | {at}


def _outside(ctx: Context, value: Value) -> list[tuple[int, str, int]]:
    """The parts that a selection fixes and that its operators do not have: coordinate, index, number of parts. An index
    of one part is none."""
    if not isinstance(value, Selection):
        return []
    operators = ctx.model.only_compute(value.operators)
    counts = [(at, name, ctx.facts.count(operators, name)) for name, at in value.fixed]
    return [(at, name, count) for at, name, count in counts if count > 1 and not 0 <= at < count]


def other_numbers(facts: Facts) -> Iterator[Diagnostic]:
    """Warnings for orders of parts that do not exist, and for clocks that leave the last parts out."""
    for (span, name, count), parts in facts.past_last.items():
        if span not in facts.before_first and facts.pairs.get(span) != 0:
            yield OrdersMissing(span, name, count, min(parts), max(parts))
    for clock in facts.clocks:
        yield from _left_out(facts, clock)


def _left_out(facts: Facts, clock: ClockOrder) -> Iterator[Diagnostic]:
    """A warning for each index of a clock of which the plan's orders name the first parts, and never the others."""
    for name in dict.fromkeys(name for row in clock.rows for name, _ in row.tasks.fixed):
        counts, parts = _named(facts, name)
        if len(counts) == 1 and FEWEST <= len(parts) < min(counts) and parts == {*range(len(parts))}:
            yield LeavesParts(clock.called or clock.span, name, min(counts), len(parts) - 1)


def _named(facts: Facts, index: str) -> tuple[set[int], set[int]]:
    """The numbers of parts of an index among what orders name, and the parts that they name."""
    sets = list(facts.sets)
    fixed = {(tasks.number, at) for _, tasks in facts.ordered() for name, at in tasks.fixed if name == index}
    return {facts.count(sets[number], index) for number, _ in fixed}, {at for _, at in fixed}


def _parts(index: str, first: int, last: int) -> str:
    return f"{index} = {first}" if first == last else f"{index} = {first} to {last}"


class OrdersMissing(Traced):
    """An order names tasks of parts that do not exist: those of micro-batch 4 where `split` makes 0 to 3.

    It has no effect for them. A schedule may go past the first and the last part, as in
    `order stage.fwd[m = m] -> stage.fwd[m = m + 1]`. But a turn of a loop that names no part at all shows that the
    schedule was written for more of them than there are. The parts that do exist may then lack an order, too.
    """

    code = "E0276"
    severity = "warning"
    title = "`{index}` has {count} parts, and the order names {parts}"
    help = "order {count} parts: `split ... into {index} = {count}` and the schedule take the same number"
    index: str
    count: int
    first: int
    last: int

    @property
    def parts(self) -> str:
        return _parts(self.index, self.first, self.last)


class LeavesParts(Traced):
    """An `order by clock` names the tasks of the first parts only, and nothing in the plan orders the others.

    The compiler places tasks without a time where it finds room, so the schedule is not the one that the clock says.
    """

    code = "E0277"
    severity = "warning"
    title = "`{index}` has {count} parts, and the clock names {parts} only"
    help = "order {count} parts: `split ... into {index} = {count}` and the schedule take the same number"
    index: str
    count: int
    last: int

    @property
    def parts(self) -> str:
        return _parts(self.index, 0, self.last)
