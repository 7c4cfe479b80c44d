"""Finds the plan that is nearest to one whose tasks wait for each other, and whose tasks do not.

One statement on the cycle is changed: the last part that an `order` names is a later one, its sides are exchanged, the
time of a clock's row moves, or the statement is left out. Each change is tried on the task graph.

    order stage[1].bwd[m = m] -> stage[0].fwd[m = m]         order stage[1].bwd[m = m] -> stage[0].fwd[m = m + 1]
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from ssdsl.lower.stages import Formed
from ssdsl.lower.tasks.graph import TaskGraph, apply_orders, roles_of
from ssdsl.plan.plan import ClockOrder, Order, Plan
from ssdsl.plan.values import Number
from ssdsl.record import Record, replace
from ssdsl.text.edits import TextEdit
from ssdsl.text.source import Span

MOVED = 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128  # how far the time of a row moves, later or earlier
LAST_PART = re.compile(r"^(.*\[[^\[\]]*?(\w+) = )([^\[\],]+)\]\s*$", re.S)  # of a selection that ends with one
OFFSET = re.compile(r"^(.*[\w)\]])\s*([+-])\s*(\d+)$", re.S)


class TriedOrders(Record):
    """A change, and the plan that has it."""

    change: TextEdit
    plan: Plan


def nearest(lowering: Formed, spans: Sequence[Span], called: Sequence[Span]) -> tuple[TextEdit, ...]:
    """The first change with which no task waits for itself, of those that keep a statement; and of those that leave
    one out. `spans` are the statements on a cycle, `called` the calls of functions with these. The last of the text
    comes first, as it contradicts what stands above it."""
    plan = lowering.plan
    site = {o.span: o.called for o in plan.orders} | {r.span: c.called for c in plan.clocks for r in c.rows}
    own = [s for s in spans if (call := site.get(s)) is None or call.source == s.source]  # of the plan's own text
    own.sort(key=lambda span: -span.start)
    found = []
    counts = {t.name: t.parts for f in lowering.functions for t in f.time}
    for ways in (_kept(plan, own, counts), _left_out(plan, own, called)):
        works = (tried.change for tried in ways if _is_possible(lowering, tried.plan))
        if (first := next(works, None)) is not None:
            found.append(first)
    return tuple(found)


def _is_possible(lowering: Formed, plan: Plan) -> bool:
    """Whether an order of all tasks respects every edge."""
    changed = replace(lowering, plan=plan)
    graph = TaskGraph(changed, roles_of(plan, tuple(lowering.submeshes.values())))
    apply_orders(graph)
    left = [node.before for node in graph.nodes]
    ready = [k for k, before in enumerate(left) if not before]
    count = 0
    while ready:
        count += 1
        for after in graph.nodes[ready.pop()].after:
            left[after] -= 1
            if not left[after]:
                ready.append(after)
    return count == len(left)


def _kept(plan: Plan, spans: list[Span], counts: Mapping[str, int]) -> Iterator[TriedOrders]:
    """Yields changes of one statement, the small ones of all statements first. `counts` are the parts of indices."""
    orders = [span for span in spans if any(order.span == span for order in plan.orders)]
    for span in orders:
        yield from _later_part(plan, span, counts)
    for span in orders:
        yield _exchanged(plan, span)
    lengths = {
        span: _length(clock) for span in spans for clock in plan.clocks if any(r.span == span for r in clock.rows)
    }
    for by in MOVED:
        for span in (span for span, length in lengths.items() if by <= length + 1):
            yield _moved(plan, span, by)
            yield _moved(plan, span, -by)


def _length(clock: ClockOrder) -> Number:
    """The time from the first row of a clock to the last."""
    return clock.rows[-1].time - clock.rows[0].time


def _later_part(plan: Plan, span: Span, counts: Mapping[str, int]) -> Iterator[TriedOrders]:
    """The order of the first part before the next one of the second."""
    before, *others = span.text.split("->")
    fixed = [order.after.fixed for order in plan.orders if order.span == span]
    if len(others) != 1 or not (match := LAST_PART.match(others[0])) or not all(fixed):
        return
    text, index, number = match.groups()
    if index not in counts:
        return
    changed = (_one_later(o, index, counts[index]) if o.span == span else o for o in plan.orders)
    orders = tuple(o for o in changed if o is not None and o.before != o.after)
    if any(o.span == span for o in orders):
        yield TriedOrders(TextEdit(span, f"{before}->{text}{_plus(number, 1)}]"), replace(plan, orders=orders))


def _one_later(order: Order, index: str, count: int) -> Order | None:
    """The order with the next part of its second tasks; None behind the last part."""
    fixed = tuple((name, at + (name == index)) for name, at in order.after.fixed)
    return replace(order, after=replace(order.after, fixed=fixed)) if (index, count) not in fixed else None


def _exchanged(plan: Plan, span: Span) -> TriedOrders:
    """The sides of an order in the opposite order."""
    sides = [side.strip() for side in span.text.removeprefix("order").split("->")]
    orders = tuple(replace(o, before=o.after, after=o.before) if o.span == span else o for o in plan.orders)
    return TriedOrders(TextEdit(span, f"order {' -> '.join(reversed(sides))}"), replace(plan, orders=orders))


def _moved(plan: Plan, span: Span, by: int) -> TriedOrders:
    """A row of a clock at another time."""
    tasks, _, time = span.text.rpartition(" at ")

    def clock(known: ClockOrder) -> ClockOrder:
        rows = (replace(row, time=row.time + by) if row.span == span else row for row in known.rows)
        return replace(known, rows=tuple(sorted(rows, key=lambda row: (row.time, row.span.start))))

    return TriedOrders(
        TextEdit(span, f"{tasks} at {_plus(time, by)}"), replace(plan, clocks=tuple(map(clock, plan.clocks)))
    )


def _plus(text: str, by: int) -> str:
    """The text of a number that is larger by a whole number.

    >>> _plus("m", 1), _plus("m - 1", 1), _plus("3", 1), _plus("2 * m + 1", -2), _plus("0 if m else s", 2)
    ('m + 1', 'm', '4', '2 * m - 1', '(0 if m else s) + 2')
    """
    if text.strip().isdigit() and int(text) + by >= 0:
        return str(int(text) + by)
    if " if " in text:
        text = f"({text})"
    elif (match := OFFSET.match(text)) is not None:
        text, by = match[1], by + int(f"{match[2]}{match[3]}")
    return f"{text} {'+' if by > 0 else '-'} {abs(by)}" if by else text


def _left_out(plan: Plan, spans: list[Span], called: Sequence[Span]) -> Iterator[TriedOrders]:
    """Yields the plan without one of the statements, or without a call."""
    for span in spans:
        clocks = (replace(c, rows=tuple(r for r in c.rows if r.span != span)) for c in plan.clocks)
        yield _without(plan, span, tuple(o for o in plan.orders if o.span != span), tuple(clocks))
    for span in called:
        orders = tuple(o for o in plan.orders if o.called != span)
        yield _without(plan, span, orders, tuple(c for c in plan.clocks if c.called != span))


def _without(plan: Plan, span: Span, orders: tuple[Order, ...], clocks: tuple[ClockOrder, ...]) -> TriedOrders:
    return TriedOrders(TextEdit(span, ""), replace(plan, orders=orders, clocks=clocks))
