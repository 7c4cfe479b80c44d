"""Calls of functions: no recursion, bounded depth; a mistake inside also shows where the call stands."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.names import CallsTooDeep, Recursion, WrongArguments
from ssdsl.plan.errors.traced import Traced
from ssdsl.plan.errors.values import WrongType
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.eval.values import Builtin, Function, kind_of
from ssdsl.text.diagnostic import Diagnostic, PlanError

DEEPEST = 32


def call(
    ctx: Context,
    e: nodes.Call,
    function: Any,
    given: list[Any],
    keyed: dict[str, Any],
    evaluate: Callable[..., Any],
) -> Any:
    """The value of a call; its statements add their facts."""
    ctx.step(e)
    if isinstance(function, Builtin):
        if keyed or not function.least <= len(given) <= function.most:
            raise PlanError(WrongArguments(e.span, function.name, function.takes, _given(given, keyed)))
        return function.function(ctx, e, *given)
    if not isinstance(function, Function):
        raise PlanError(WrongType(e.function.span, "a function", kind_of(function), ""))
    scope = _bound(e, function, given, keyed)
    if id(function.node) in ctx.calls:
        raise PlanError(Recursion(e.span, function.name))
    if len(ctx.calls) >= DEEPEST:
        raise PlanError(CallsTooDeep(e.span))
    ctx.calls[id(function.node)] = function.node
    ctx.sites.append(e.span)
    try:
        if isinstance(function.node, nodes.Let):
            return evaluate(ctx, scope, function.node.value)
        return ctx.execute(ctx, scope, function.node.body)
    except PlanError as error:
        raise PlanError(*(_traced(d, e) for d in error.diagnostics)) from None
    finally:
        del ctx.calls[id(function.node)]
        ctx.sites.pop()


def _traced(d: Diagnostic, e: nodes.Call) -> Diagnostic:
    """The diagnostic, which knows one call more."""
    if not isinstance(d, Traced):
        return d
    further: dict[str, Any] = {"calls": (*d.calls, e.span)}
    return replace(d, **further)


def _bound(e: nodes.Call, function: Function, given: list[Any], keyed: dict[str, Any]) -> Scope:
    """The scope of a call, its arguments bound."""
    formals = function.formals
    if not keyed and len(given) == len(formals):
        return function.scope.inside(dict(zip(formals, given, strict=True)))
    values = dict(zip(formals, given, strict=False)) | keyed
    if len(given) + len(keyed) != len(formals) or values.keys() != set(formals):
        takes = f"({', '.join(formals)})" if formals else "no arguments"
        raise PlanError(WrongArguments(e.span, function.name, takes, _given(given, keyed)))
    return function.scope.inside(values)


def _given(given: list[Any], keyed: dict[str, Any]) -> str:
    number = len(given) + len(keyed)
    names = f", {', '.join(keyed)}" if keyed else ""
    return f"given {number} argument{'' if number == 1 else 's'}{names}"
