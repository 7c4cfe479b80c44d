"""`prefetch`: the number of values that operators may receive before they read them."""

from dataclasses import replace
from functools import partial

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.traced import Conflict, Traced
from ssdsl.plan.eval.expressions import evaluate, whole_number
from ssdsl.plan.eval.select import whole_operators
from ssdsl.plan.plan import Mark
from ssdsl.text.diagnostic import PlanError

MOST_AHEAD = 1024


def prefetch(ctx: Context, s: nodes.PrefetchStatement) -> None:
    """Notes the number for each operator. Raises PlanError for a number out of range, or one that contradicts an
    earlier one."""
    operators = ctx.model.ordered(whole_operators(ctx, evaluate(ctx, s.operators), s.operators, "prefetch"))
    ahead = whole_number(ctx, s.ahead)
    if not 0 <= ahead <= MOST_AHEAD:
        raise PlanError(NoSuchPrefetch(s.ahead.span, ahead, MOST_AHEAD))
    for op in operators:
        known = ctx.facts.of(op.name).ahead
        if known is not None and known.value != ahead:
            raise PlanError(PrefetchedTwice(s.ahead.span, op.module, known.value, ahead, first=known.span))
    new = [op.name for op in operators if ctx.facts.of(op.name).ahead is None]
    ctx.facts.revise(ctx.facts.numbers(new), partial(replace, ahead=Mark(ahead, s.span)))


class NoSuchPrefetch(Traced):
    """`prefetch OPS by N` keeps N buffers beside the one that is read next, for each value that OPS receive.

    With 0 a value is requested once the one before it has been read. Each further buffer takes memory of the device.
    """

    code = "E0265"
    title = "cannot prefetch {ahead} values"
    help = "choose a number from 0 to {most}; the default is 2"
    ahead: int
    most: int


class PrefetchedTwice(Conflict):
    """Two `prefetch` give an operator different numbers of buffers."""

    code = "E0266"
    title = "`{operator}` is prefetched by {known} already, not by {ahead}"
    help = "remove one"
    earlier = "by another number here"
    operator: str
    known: int
    ahead: int
