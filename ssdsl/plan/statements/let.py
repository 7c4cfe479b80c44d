"""`let`: a name for a value, or for a family of values."""

from dataclasses import dataclass

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.eval.expressions import evaluate
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.eval.values import Function, Value


def let(ctx: Context, scope: Scope, s: nodes.Let) -> None:
    """Binds a value or, with arguments, a function that is one expression."""
    scope.check_free(*s.formals or ())
    scope.bind(s.name, evaluate(ctx, scope, s.value) if s.formals is None else Family(s, scope))


@dataclass(frozen=True, slots=True, eq=False)
class Family(Function):
    """`let f(s, m) = expression`."""

    node: nodes.Let

    def result(self, ctx: Context, scope: Scope) -> Value:
        return evaluate(ctx, scope, self.node.value)
