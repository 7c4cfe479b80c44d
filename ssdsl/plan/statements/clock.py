"""`order by clock`: a schedule as a nominal time for each task, by which every device sorts what it runs."""

from fractions import Fraction

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.place import NoSuchOrder
from ssdsl.plan.errors.values import WrongType
from ssdsl.plan.eval.expressions import evaluate, turns
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.eval.values import kind_of
from ssdsl.plan.plan import Clock, TaskSet, Timed
from ssdsl.plan.statements.order import task_set
from ssdsl.text.diagnostic import PlanError


def clock(ctx: Context, scope: Scope, s: nodes.Clock) -> None:
    """The rows of all turns of the loop, sorted; a row whose index is out of range names no task."""
    if s.by.text != "clock":
        raise PlanError(NoSuchOrder(s.by.span, s.by.text))
    rows: list[tuple[int | Fraction, int, Timed]] = []
    said: set[tuple[int, TaskSet, int | Fraction]] = set()  # a loop that goes on without a row's tasks says them again
    for inner in turns(ctx, scope, s.bindings):
        for number, row in enumerate(s.rows):
            ctx.step(row)
            tasks = task_set(ctx, row.tasks, evaluate(ctx, inner, row.tasks))
            time = _time(ctx, inner, row.time)
            if tasks is not None and (number, tasks, time) not in said:
                said.add((number, tasks, time))
                rows.append((time, number, Timed(tasks, time, row.span)))
    rows.sort(key=lambda row: row[:2])
    called = ctx.sites[0] if ctx.sites else None
    ctx.clocks.append(Clock(tuple(timed for _, _, timed in rows), s.span, called))
    ctx.related[s.span] = ctx.related.get(s.span, 0) + len(rows) // 2


def _time(ctx: Context, scope: Scope, e: nodes.Expr) -> int | Fraction:
    value = evaluate(ctx, scope, e)
    if isinstance(value, bool) or not isinstance(value, int | Fraction):
        raise PlanError(WrongType(e.span, "a number, the nominal time", kind_of(value), ""))
    return value
