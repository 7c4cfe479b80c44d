"""`param`: the numbers of a plan that the user may set; known without a model."""

from collections.abc import Iterator

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.names import MisplacedParam, NotConstant
from ssdsl.plan.eval.expressions import whole_number
from ssdsl.plan.eval.scope import Scope
from ssdsl.text.diagnostic import PlanError

FUNCTIONS = ("min", "max")


def param(ctx: Context, scope: Scope, s: nodes.Param) -> None:
    """Bind a parameter to its default, or to what the user set; in a file that is used, to its default."""
    if scope.parent is None or scope.parent.parent is not None:
        raise PlanError(MisplacedParam(s.span))
    for name in _names(s.default):
        if name.text not in ctx.params and name.text not in FUNCTIONS and name.text in scope.names():
            raise PlanError(NotConstant(name.span, name.text))
    value = whole_number(ctx, scope, s.default)
    if not ctx.files:
        value = ctx.overrides.get(s.name.text, value)
    scope.bind(s.name, value)
    if not ctx.files:
        ctx.params[s.name.text] = value


def _names(e: nodes.Node) -> Iterator[nodes.Name]:
    match e:
        case nodes.Name():
            yield e
        case nodes.Binary(_, left, right):
            yield from (*_names(left), *_names(right))
        case nodes.Unary(_, operand):
            yield from _names(operand)
        case nodes.Conditional(then, test, other):
            yield from (*_names(then), *_names(test), *_names(other))
        case nodes.Call(function, arguments):
            for part in (function, *arguments):
                yield from _names(part)
        case nodes.ListOf(items):
            for part in items:
                yield from _names(part)
        case nodes.Pick(target, keys):
            for part in (target, *keys):
                yield from _names(part)
        case nodes.Keyed(_, value) | nodes.Attribute(value, _):
            yield from _names(value)
