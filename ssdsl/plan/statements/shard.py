"""`split OPS.weights by row into dp`: state that is cut over devices (ZeRO)."""

from ssdsl.lang import nodes
from ssdsl.lang.suggest import suggest
from ssdsl.model.graph import Origin
from ssdsl.plan.context import Context
from ssdsl.plan.errors.select import NothingSelected
from ssdsl.plan.errors.split import OnlyByRow, ShardedTwice, StateOverAxis
from ssdsl.plan.eval.values import StateOf
from ssdsl.plan.plan import Shard
from ssdsl.text.diagnostic import PlanError


def shard(ctx: Context, s: nodes.Split, value: StateOf) -> None:
    """Add the fact that some state of some weights is cut."""
    if s.dim.text != "row":
        raise PlanError(OnlyByRow(s.dim.span, str(value.state), s.dim.text))
    for cut in s.cuts:
        _check_axis(ctx, cut)
    weights = frozenset(
        operand.value
        for op in ctx.ordered(value.operators)
        for operand in op.inputs
        if ctx.graph.values[operand.value].origin is Origin.WEIGHT
    )
    if not weights:
        raise PlanError(NothingSelected(s.operators.span))
    new = Shard(value.state, weights, tuple(cut.name.text for cut in s.cuts), s.span)
    for old in ctx.shards:
        if old.state is new.state and old.axes != new.axes and (both := old.weights & weights):
            raise PlanError(ShardedTwice(s.span, str(new.state), min(both), old.span))
    ctx.shards.append(new)


def _check_axis(ctx: Context, cut: nodes.Cut) -> None:
    name = cut.name.text
    if name in ctx.broken:
        raise PlanError()
    if cut.count is not None:
        raise PlanError(StateOverAxis(cut.span, name, "", "has a number of parts: leave it out"))
    axes = [axis for _, axis, _ in ctx.axes()]
    if name not in axes:
        raise PlanError(StateOverAxis(cut.span, name, suggest(name, axes), "is no axis of a mesh above"))
