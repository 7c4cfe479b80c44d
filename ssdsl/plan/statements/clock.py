"""`order by clock`: a schedule as a nominal time for each task, by which every device sorts what it runs."""

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.traced import Traced
from ssdsl.plan.errors.values import Wanted
from ssdsl.plan.eval.expressions import evaluate, expect, turns
from ssdsl.plan.eval.values import Number, is_number
from ssdsl.plan.hints.number_of_parts import note_turn
from ssdsl.plan.plan import ClockOrder, ClockRow, TaskSet
from ssdsl.plan.statements.order import is_of_one, task_set
from ssdsl.text.diagnostic import PlanError


def clock(ctx: Context, s: nodes.ClockStatement) -> None:
    """Adds a clock with the rows of all turns of the loop, sorted by time. A row whose index is out of range names no
    task."""
    if s.by.text != "clock":
        raise PlanError(NoSuchOrder(s.by.span, s.by.text))
    if not ctx.orders:
        return
    rows: list[tuple[Number, int, ClockRow]] = []
    said: set[tuple[int, TaskSet, Number]] = set()  # turns that a row does not depend on repeat it
    of_one = False
    for inner in turns(ctx, s.bindings):
        values = [evaluate(inner, row.tasks) for row in s.rows]
        note_turn(ctx, s.span, values)
        for number, (row, value) in enumerate(zip(s.rows, values, strict=True)):
            ctx.budget.spend(row)
            tasks = task_set(ctx, row.tasks, value)
            alone = (tasks is None or len(rows) < 2) and is_of_one(ctx, value)  # behind two rows it does not matter
            of_one = of_one or alone
            if tasks is not None or not alone:
                ctx.facts.named[row.span] += tasks is not None
            time = expect(inner, row.time, is_number, Wanted.TIME)
            if tasks is not None and (number, tasks, time) not in said:
                said.add((number, tasks, time))
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
