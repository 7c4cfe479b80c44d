"""The statements that bind names and steer: `let`, `mesh`, `def`, `return`, `require`, `for`, `if` and calls."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ssdsl.lang import nodes
from ssdsl.lang.spell import spell
from ssdsl.plan.context import Context
from ssdsl.plan.errors.names import MisplacedParam, RequireFailed
from ssdsl.plan.eval.expressions import evaluate, truth, turns, whole_number
from ssdsl.plan.eval.origin import origin_of
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.eval.values import Function
from ssdsl.plan.statements.mesh import declare_mesh
from ssdsl.text.diagnostic import PlanError


@dataclass(frozen=True, slots=True)
class Returned:
    """The value of a `return`, on its way out of the blocks."""

    value: Any


Execute = Callable[[Context, Scope, tuple[nodes.Statement, ...]], Returned | None]


def let(ctx: Context, scope: Scope, s: nodes.Let) -> None:
    scope.check_free(*s.formals or ())
    scope.bind(s.name, evaluate(ctx, scope, s.value) if s.formals is None else Function(s, scope))


def define(ctx: Context, scope: Scope, s: nodes.Def) -> None:
    scope.check_free(*s.formals)
    scope.bind(s.name, Function(s, scope))


def mesh(ctx: Context, scope: Scope, s: nodes.Mesh) -> None:
    sizes = [whole_number(ctx, scope, axis.value) for axis in s.axes]
    declare_mesh(ctx, scope, s, sizes)
    for axis in s.axes:
        if origin := origin_of(ctx, scope, axis.value):
            ctx.origins[s.name.text, axis.name.text] = origin


def return_(ctx: Context, scope: Scope, s: nodes.Return) -> Returned:
    return Returned(evaluate(ctx, scope, s.value))


def do(ctx: Context, scope: Scope, s: nodes.Do) -> None:
    evaluate(ctx, scope, s.call)


def require(ctx: Context, scope: Scope, s: nodes.Require) -> None:
    """Raises PlanError if the precondition does not hold, with the parameters in force."""
    if not truth(ctx, scope, s.test):
        values = ", ".join(f"{name} = {value}" for name, value in ctx.params.items())
        raise PlanError(RequireFailed(s.test.span, s.why or f"`{spell(s.test)}` does not hold", values))


def loop(ctx: Context, scope: Scope, s: nodes.For, execute: Execute) -> Returned | None:
    for inner in turns(ctx, scope, s.bindings):
        returned = execute(ctx, inner, s.body)
        if returned is not None:
            return returned
    return None


def branch(ctx: Context, scope: Scope, s: nodes.If, execute: Execute) -> Returned | None:
    """The first block whose test holds; it opens no scope of its own, and declares no parameters."""
    for statement in (*(x for b in s.branches for x in b.body), *s.other):
        if isinstance(statement, nodes.Param):
            raise PlanError(MisplacedParam(statement.span))
    for b in s.branches:
        if truth(ctx, scope, b.test):
            return execute(ctx, scope, b.body)
    return execute(ctx, scope, s.other)
