"""`order A -> B`: which tasks run before which. A pair of task sets stays one fact, however many tasks it relates."""

from itertools import pairwise
from typing import Any

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.values import WrongType
from ssdsl.plan.eval.expressions import evaluate
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.eval.values import Selection, kind_of
from ssdsl.plan.plan import Order, TaskSet
from ssdsl.text.diagnostic import PlanError


def order(ctx: Context, scope: Scope, s: nodes.Order) -> None:
    """Each step before the next; a step whose index is out of range names no task, and relates to none."""
    tasks = [task_set(ctx, step, evaluate(ctx, scope, step)) for step in s.steps]
    called = ctx.sites[0] if ctx.sites else None
    orders = [Order(a, b, s.span, called) for a, b in pairwise(tasks) if a is not None and b is not None]
    ctx.orders.extend(orders)
    ctx.related[s.span] = ctx.related.get(s.span, 0) + len(orders)


def task_set(ctx: Context, e: nodes.Expr, value: Any) -> TaskSet | None:
    """The tasks that an expression names; None where an index is out of range. Raises PlanError if it is no
    selection."""
    if not isinstance(value, Selection):
        raise PlanError(WrongType(e.span, "a selection of operators", kind_of(value), ""))
    operators = ctx.only_compute(value.operators)
    fixed = []
    for name, at in value.fixed:
        count = ctx.count(operators, name)
        if not 0 <= at < count:
            return None
        if count > 1:
            fixed.append((name, at))
    return TaskSet(operators, tuple(fixed), value.phase) if operators else None
