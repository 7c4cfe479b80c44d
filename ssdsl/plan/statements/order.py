"""`order A -> B` runs some tasks before others; `order by clock` gives each a nominal time, by which every device sorts
what it runs. A pair of task sets stays one fact, however many tasks it relates."""

from collections.abc import Iterator
from itertools import pairwise

from ssdsl.lang import nodes
from ssdsl.lang.formatter.spell import POST, spell
from ssdsl.plan.context import Context
from ssdsl.plan.errors.traced import Traced
from ssdsl.plan.errors.values import Wanted, required
from ssdsl.plan.eval.expressions import evaluate, expect, turns
from ssdsl.plan.eval.select import PHASES
from ssdsl.plan.hints.number_of_parts import note_turn
from ssdsl.plan.plan import HALVES, ClockOrder, ClockRow, Order, PartRun, Phase, TaskSet
from ssdsl.plan.values import Number, Selection, Value, is_number, is_selection
from ssdsl.text.diagnostic import PlanError


def names_halves(s: nodes.Statement) -> bool:
    """Whether a statement names one half of a backward, `.dgrad` or `.wgrad`."""
    return any(isinstance(node, nodes.Attribute) and node.name.text in HALVES for node in nodes.walk(s))


def order(ctx: Context, s: nodes.OrderStatement) -> None:
    """Orders each step before the next. A step whose index is out of range names no task, and is skipped."""
    if not ctx.orders:
        return
    values = [evaluate(ctx, step) for step in s.steps]
    steps = [*zip(s.steps, values, strict=True)]
    note_turn(ctx, s.span, values)
    orders = [
        Order(before, after, s.span, ctx.stack.site)
        for (e, value), (at, other) in pairwise(steps)
        for one, another in _run_by_run(ctx, value, other)
        if (before := task_set(ctx, e, one)) is not None and (after := task_set(ctx, at, another)) is not None
    ]
    ctx.facts.orders.extend(orders)
    if orders or not any(is_of_one(ctx, value) for value in values):
        ctx.facts.pairs[s.span] += len(orders)


def _run_by_run(ctx: Context, before: Value, after: Value) -> Iterator[tuple[Value, Value]]:
    """Yields two steps once for each run of parts that a plan names, for an index that both have and neither fixes:
    tasks of equal parts are related."""
    if isinstance(before, Selection) and isinstance(after, Selection):
        fixed = {name for name, _ in (*before.fixed, *after.fixed)}
        for name in ctx.model.named:
            runs, others = (ctx.facts.runs(side.operators, name) for side in (before, after))
            if name not in fixed and others and len(runs) > 1:
                for run in runs:
                    yield from _run_by_run(ctx, *(_of_run(ctx, side, run) for side in (before, after)))
                return
    yield before, after


def _of_run(ctx: Context, value: Selection, run: PartRun) -> Selection:
    """The operators of a selection that are these parts, and those that are of all."""
    others = (ctx.facts.among(value.operators, other) for other in ctx.model.named[run.index] if other != run)
    return value.within(value.operators.difference(*others))


def is_of_one(ctx: Context, value: Value) -> bool:
    """Whether a selection fixes an index that has only one part. An order of such tasks may relate nothing, without a
    warning."""
    if not isinstance(value, Selection):
        return False
    operators = ctx.model.only_compute(value.operators)
    return any(ctx.facts.count(operators, name) == 1 for name, _ in value.fixed)


def task_set(ctx: Context, e: nodes.Expr, value: Value) -> TaskSet | None:
    """The tasks that an expression names; None if an index is out of range, or no operators are selected. Raises
    PlanError if the value is no selection."""
    selection = required(value, is_selection, e, Wanted.OPERATORS)
    operators = ctx.model.only_compute(selection.operators)
    fixed = []
    for name, at in selection.fixed:
        count = ctx.facts.count(operators, name)
        if not 0 <= at < count:
            return None
        run = next((run for run in ctx.facts.runs(operators, name) if run.has(at)), PartRun(name, 0, count, count))
        if run.count > 1:  # an index of one part chooses nothing
            fixed.append((name, at - run.first))
    if selection.phase is Phase.AGAIN and operators:
        ctx.facts.again.setdefault((e.span, ctx.facts.number_of(operators)), spell(_without_phase(e), POST))
    return TaskSet(ctx.facts.number_of(operators), tuple(fixed), selection.phase) if operators else None


def _without_phase(e: nodes.Expr) -> nodes.Expr:
    """`stage[0]` of `stage[0].again[m = 0]`; the expression itself if its phase is not written there."""
    inner = e
    while isinstance(inner, nodes.Pick):
        inner = inner.target
    return inner.target if isinstance(inner, nodes.Attribute) and inner.name.text in PHASES else e


def clock(ctx: Context, s: nodes.ClockStatement) -> None:
    """Adds a clock with the rows of all turns of the loop, sorted by time. A row whose index is out of range names no
    task."""
    if s.by.text != "clock":
        raise PlanError(NoSuchOrder(s.by.span, s.by.text))
    if not ctx.orders:
        return
    rows: list[tuple[Number, int, ClockRow]] = []  # with the time and the line's number, by which they are sorted
    seen: set[tuple[int, TaskSet, Number]] = set()  # a row that does not depend on a loop is the same in each turn
    of_one = False  # whether a row names an index of one part: such a clock may relate nothing, without a warning
    for inner in turns(ctx, s.bindings):
        values = [evaluate(inner, row.tasks) for row in s.rows]
        note_turn(ctx, s.span, values)
        for number, (row, value) in enumerate(zip(s.rows, values, strict=True)):
            ctx.budget.spend(row)
            tasks = task_set(ctx, row.tasks, value)
            alone = (tasks is None or len(rows) < 2) and is_of_one(ctx, value)  # two rows relate something anyway
            of_one = of_one or alone
            if tasks is not None or not alone:
                ctx.facts.named[row.span] += tasks is not None  # a row that stays at 0 gets a warning
            time = expect(inner, row.time, is_number, Wanted.TIME)
            if tasks is not None and (number, tasks, time) not in seen:
                seen.add((number, tasks, time))
                rows.append((time, number, ClockRow(tasks, time, row.span)))
    rows.sort(key=lambda row: row[:2])
    ctx.facts.clocks.append(ClockOrder(tuple(timed for _, _, timed in rows), s.span, ctx.stack.site))
    if len(rows) > 1 or not of_one:
        ctx.facts.pairs[s.span] += len(rows) // 2


class NoSuchOrder(Traced):
    """`order by` takes only `clock`: each row says `TASKS at TIME`."""

    code = "E0258"
    title = "tasks cannot be ordered by `{by}`"
    help = "write `order by clock:`, and below it rows such as `stage[s].fwd[m = m] at 2 * m`"
    by: str
