"""Calls of functions: no recursion, bounded depth. A mistake inside also shows the place of the call."""

from dataclasses import replace
from typing import Any

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.names import CallsTooDeep, Recursion, WrongArguments
from ssdsl.plan.errors.traced import Traced
from ssdsl.plan.errors.values import Wanted, WrongType
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.eval.values import Builtin, PlanFunction, Value
from ssdsl.text.diagnostic import Diagnostic, PlanError

DEEPEST = 32


def call(ctx: Context, e: nodes.Call, function: Value, given: list[Value], keyed: dict[str, Value]) -> Value:
    """The value of a call. Raises PlanError for wrong arguments, and passes on errors from inside."""
    ctx.budget.spend(e)
    match function:
        case Builtin(name, takes, least, most, run, keys):
            if not keyed.keys() <= keys or not least <= len(given) <= most:
                raise PlanError(WrongArguments(e.span, name, takes, len(given), tuple(keyed)))
            return run(ctx, e, tuple(given), **keyed)
        case PlanFunction():
            return _result(ctx, e, function, _bound(e, function, given, keyed))
        case _:
            raise PlanError(WrongType(e.function.span, Wanted.FUNCTION, function))


def _result(ctx: Context, e: nodes.Call, function: PlanFunction, scope: Scope) -> Value:
    if ctx.stack.is_in(function.node):
        raise PlanError(Recursion(e.span, function.name))
    if len(ctx.stack.functions) >= DEEPEST:
        raise PlanError(CallsTooDeep(e.span))
    try:
        return function.result(ctx.called(function.node, e.span, scope))
    except PlanError as error:
        raise PlanError(*(_traced(d, e) for d in error.diagnostics)) from None


def _traced(d: Diagnostic, e: nodes.Call) -> Diagnostic:
    """The diagnostic with this call appended to the calls that led to it."""
    if not isinstance(d, Traced):
        return d
    further: dict[str, Any] = {"calls": (*d.calls, e.span)}
    return replace(d, **further)


def _bound(e: nodes.Call, function: PlanFunction, given: list[Value], keyed: dict[str, Value]) -> Scope:
    """The scope of a call, with its arguments bound."""
    formals = function.formals
    values = dict(zip(formals, given, strict=False)) | keyed
    if len(given) + len(keyed) != len(formals) or values.keys() != set(formals):
        raise PlanError(WrongArguments(e.span, function.name, formals, len(given), tuple(keyed)))
    return function.scope.inside(values)
