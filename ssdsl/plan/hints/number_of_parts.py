"""Finds schedules for another number of parts than the plan cuts: `one_f_one_b(stage, 8)` where `m` has four."""

from collections.abc import Iterator

from ssdsl.plan.context import Context
from ssdsl.plan.errors.traced import Traced
from ssdsl.plan.facts import Facts
from ssdsl.plan.plan import ClockOrder
from ssdsl.plan.values import Selection, Value
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Span

FEWEST = 2  # parts that a clock names before it counts as too short: rows of part 0 alone may mean just that part


def note_turn(ctx: Context, span: Span, values: list[Value]) -> None:
    """Notes the parts that do not exist, if one turn of an `order` statement (one pass through its loops) names no
    others. `values` are its operands.

    A schedule may run past both ends, as `m - 1 -> m` does at m = 0. It is right if such a turn also names a part that
    exists, or if other turns name parts before the first one (`facts.before_first`).
    """
    place = ctx.stack.site or span
    missing = [_missing(ctx, value) for value in values]
    if any(at < 0 for parts in missing for at, _, _ in parts):
        ctx.facts.before_first.add(place)
    if all(missing):
        at, name, count = min(min(parts) for parts in missing)
        key = place, name, count
        ctx.facts.past_last[key] = ctx.facts.past_last.get(key, frozenset()) | {at}


def _missing(ctx: Context, value: Value) -> list[tuple[int, str, int]]:
    """The parts that a selection fixes and that its operators do not have: (coordinate, index, number of parts). An
    index of one part does not count, because it splits nothing."""
    if not isinstance(value, Selection):
        return []
    operators = ctx.model.only_compute(value.operators)
    counts = [(at, name, ctx.facts.count(operators, name)) for name, at in value.fixed]
    return [(at, name, count) for at, name, count in counts if count > 1 and not 0 <= at < count]


def check_parts(facts: Facts) -> Iterator[Diagnostic]:
    """Warnings for orders of parts that do not exist, and for clocks that leave the last parts out."""
    for (span, name, count), parts in facts.past_last.items():
        if span not in facts.before_first and facts.pairs.get(span) != 0:
            yield OrdersMissing(span, name, count, min(parts), max(parts))
    for clock in facts.clocks:
        yield from _left_out(facts, clock)


def _left_out(facts: Facts, clock: ClockOrder) -> Iterator[Diagnostic]:
    """Yields a warning for each index of a clock, if the plan's orders name only its first parts."""
    sets = list(facts.sets)
    for name in dict.fromkeys(name for row in clock.rows for name, _ in row.tasks.fixed):
        if any(facts.runs(sets[row.tasks.number], name) for row in clock.rows):
            continue  # parts that the plan names are not all of an operator's
        counts, parts = _named(facts, name)
        if len(counts) == 1 and FEWEST <= len(parts) < min(counts) and parts == {*range(len(parts))}:
            yield LeavesParts(clock.called or clock.span, name, min(counts), len(parts) - 1)


def _named(facts: Facts, index: str) -> tuple[set[int], set[int]]:
    """The numbers of parts that an index has for the operators that orders name, and the parts that orders name."""
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
