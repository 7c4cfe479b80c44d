"""Where a number came from, as far as a user can change it: a parameter."""

from dataclasses import dataclass

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.eval.scope import Scope


@dataclass(frozen=True, slots=True)
class Origin:
    """A parameter, and what gave it its value: "from --set T=8"."""

    param: str
    text: str


def origin_of(ctx: Context, scope: Scope, e: nodes.Expr) -> Origin | None:
    """The parameter that an expression is, if it is just one."""
    if not isinstance(e, nodes.Name) or e.text not in ctx.params:
        return None
    if scope.find(e.text, e.span) != ctx.params[e.text]:
        return None
    how = "from --set" if e.text in ctx.overrides else "the default of"
    return Origin(e.text, f"{how} {e.text}={ctx.params[e.text]}" if how == "from --set" else f"{how} {e.text}")
