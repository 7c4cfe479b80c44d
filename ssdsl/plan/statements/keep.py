"""`keep OPS.weights through m`: how long weights that are in parts stay on a device once they are gathered."""

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.traced import Conflict, Traced
from ssdsl.plan.eval.expressions import evaluate
from ssdsl.plan.facts import index_names
from ssdsl.plan.plan import Keep, State
from ssdsl.plan.statements.shard import OnlyByRow, check_axis, weights_of, without_state
from ssdsl.plan.values import StateOf
from ssdsl.text.diagnostic import PlanError

STEP, ROW = "step", "row"


def keep(ctx: Context, s: nodes.KeepStatement) -> None:
    """Adds the fact for the weights that the operators read. Raises PlanError for another state, for an index that none
    of the operators has, or if some are kept otherwise already."""
    value = evaluate(ctx, s.operators)
    if not isinstance(value, StateOf) or value.state is not State.WEIGHTS:
        raise PlanError(OnlyWeightsStay(s.operators.span, without_state(s.operators, value)))
    if s.cut is not None:
        if s.cut.dim.text != ROW:
            raise PlanError(OnlyByRow(s.cut.dim.span, value.state, s.cut.dim.text))
        for axis in s.cut.axes:
            check_axis(ctx, axis)
    weights = weights_of(ctx, s.operators, value, "keep")
    axes = {axis for _, axis, _ in ctx.facts.axes()}
    names = tuple(name for name in index_names(ctx.facts, ctx.model, value.operators) if name not in axes)
    through = s.through.text
    if through != STEP and through not in names:
        raise PlanError(NoSuchInterval(s.through.span, through, names))
    over = () if s.cut is None else tuple(axis.text for axis in s.cut.axes)
    new = Keep(weights, over, None if through == STEP else through, s.phase is not None, s.span)
    for old in ctx.facts.kept:
        if old.how != new.how and (both := old.weights & weights):
            raise PlanError(KeptTwice(s.span, min(both), first=old.span))
    if weights:
        ctx.facts.kept.append(new)


class OnlyWeightsStay(Traced):
    """`keep OPS.weights through m`: weights in parts stay once they are gathered. Nothing else is gathered so."""

    code = "E0260"
    title = "only weights are kept"
    help = "write `{operators}.weights`"
    operators: str

    @property
    def instead(self) -> tuple[str, ...]:
        return (f"{self.operators}.weights",)


class NoSuchInterval(Traced):
    """`keep OPS.weights through m` keeps weights through all parts of an index of these operators, one after another in
    time, and `through step` from their first reader in a step to the last one."""

    code = "E0261"
    title = "none of these operators has an index `{index}`"
    index: str
    names: tuple[str, ...]

    @property
    def change(self) -> str:
        return f"write one of {', '.join(f'`{name}`' for name in self.instead)}"

    @property
    def instead(self) -> tuple[str, ...]:
        return (*self.names, STEP)


class KeptTwice(Conflict):
    """Two `keep` say of a weight that it is kept for unlike times, or in unlike parts."""

    code = "E0262"
    title = "`{weight}` is kept in another way already"
    help = "remove one"
    earlier = "kept here first"
    weight: str
