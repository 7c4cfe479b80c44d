"""`param`: the numbers of a plan that the user may set; known without a model."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.traced import Traced
from ssdsl.plan.eval.expressions import whole_number
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.facts import Origin
from ssdsl.text.diagnostic import Diagnostic, PlanError

FUNCTIONS = ("min", "max")


def param(ctx: Context, scope: Scope, s: nodes.Param) -> None:
    """Bind a parameter to its default, or to what the user set; in a file that is used, to its default.

    Raises PlanError in a block, and for a default that needs more than numbers and earlier parameters.
    """
    if scope.parent is None or scope.parent.parent is not None:
        raise PlanError(MisplacedParam(s.span))
    for name in _names(s.default):
        if name.text not in ctx.facts.params and name.text not in FUNCTIONS and name.text in scope.names():
            raise PlanError(NotConstant(name.span, name.text))
    value = whole_number(ctx, scope, s.default)
    if ctx.stack.files:
        scope.bind(s.name, value)
        return
    value = ctx.overrides.get(s.name.text, value)
    scope.bind(s.name, value)
    ctx.facts.params[s.name.text] = value


def origin_of(ctx: Context, scope: Scope, e: nodes.Expr) -> Origin | None:
    """The parameter that an expression is, if it is just one."""
    if not isinstance(e, nodes.Name) or e.text not in ctx.facts.params:
        return None
    value = ctx.facts.params[e.text]
    if scope.find(e.text, e.span) != value:  # an inner scope gave the name another meaning
        return None
    return Origin(e.text, value, e.text in ctx.overrides)


def _names(e: nodes.Node) -> Iterator[nodes.Name]:
    """All names in an expression."""
    if isinstance(e, nodes.Name):
        yield e
    for f in fields(e):
        child = getattr(e, f.name)
        for part in child if isinstance(child, tuple) else (child,):
            if isinstance(part, nodes.Node) and not isinstance(part, nodes.Word):
                yield from _names(part)


@dataclass(frozen=True)
class NotConstant(Traced, Diagnostic):
    """The default of a parameter is a number made of numbers and earlier parameters: `param M = 2 * S`.

    So the plan's parameters can be listed without a model.
    """

    code = "E0226"
    title = "the default of a parameter cannot depend on `{name}`"
    help = "use numbers, earlier parameters, `min` and `max`; other values are bound by `let`"
    name: str


@dataclass(frozen=True)
class MisplacedParam(Traced, Diagnostic):
    """`param` stands in a function, a loop or a condition. The parameters of a plan are fixed and stand at its top."""

    code = "E0227"
    title = "`param` stands inside a block"
    help = "move it to the top of the plan"
