"""`require`: the plan's own precondition."""

from ssdsl.lang import nodes
from ssdsl.lang.formatter.spell import spell
from ssdsl.plan.context import Context
from ssdsl.plan.errors.traced import Traced
from ssdsl.plan.eval.expressions import truth
from ssdsl.text.diagnostic import PlanError


def require(ctx: Context, s: nodes.RequireStatement) -> None:
    """Raises PlanError if the precondition does not hold."""
    if not truth(ctx, s.test):
        raise PlanError(RequireFailed(s.test.span, spell(s.test), s.why, tuple(ctx.facts.params.items())))


class RequireFailed(Traced):
    """A `require` of the plan, its own precondition, does not hold for these parameters and this model."""

    code = "E0228"
    title = "{fact}"
    label = "this does not hold"
    note = "{values}"
    test: str
    why: str | None
    params: tuple[tuple[str, int], ...]  # the values in force

    @property
    def fact(self) -> str:
        return self.why or f"`{self.test}` does not hold"

    @property
    def values(self) -> str:
        return ", ".join(f"{name} = {value}" for name, value in self.params)

    @property
    def change(self) -> str:
        other = "choose other parameters with `--set`" if self.params else ""
        if self.calls:  # in a function: it may be wrong what the plan gives to it
            return f"give the call other arguments{', or ' if other else ''}{other}"
        return other or "change what the plan says above this line"
