"""`let`: a name for a value, or for a family of values."""

from dataclasses import dataclass

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.eval.expressions import evaluate
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.eval.values import PlanFunction, Value


def let(ctx: Context, scope: Scope, s: nodes.LetStatement) -> None:
    """Binds a value or, with arguments, a function that is one expression."""
    scope.check_free(*s.formals or ())
    scope.bind(s.name, evaluate(ctx, scope, s.value) if s.formals is None else LetFunction(s, scope))


@dataclass(frozen=True, slots=True, eq=False)
class LetFunction(PlanFunction):
    """`let f(s, m) = expression`."""

    node: nodes.LetStatement

    def result(self, ctx: Context, scope: Scope) -> Value:
        return evaluate(ctx, scope, self.node.value)
