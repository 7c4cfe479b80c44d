"""The value of an expression: one function per node, in a table by the node's type."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.values import WrongType
from ssdsl.plan.eval.calls import call
from ssdsl.plan.eval.operations import binary
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.eval.select import attribute, pick
from ssdsl.plan.eval.values import is_number, kind_of
from ssdsl.text.diagnostic import PlanError


def evaluate(ctx: Context, scope: Scope, e: nodes.Expr) -> Any:
    """The value of an expression."""
    return EVALUATORS[type(e)](ctx, scope, e)


def expect(ctx: Context, scope: Scope, e: nodes.Expr, kind: type[Any] | tuple[type[Any], ...], words: str) -> Any:
    """The value of an expression that must be of some kind; `words` say which."""
    value = evaluate(ctx, scope, e)
    if not isinstance(value, kind):
        raise PlanError(WrongType(e.span, words, kind_of(value), ""))
    return value


def whole_number(ctx: Context, scope: Scope, e: nodes.Expr) -> int:
    value = evaluate(ctx, scope, e)
    if not is_number(value):
        raise PlanError(WrongType(e.span, "a whole number", kind_of(value), ""))
    return int(value)


def turns(ctx: Context, scope: Scope, bindings: tuple[nodes.Binding, ...]) -> Iterator[Scope]:
    """The scopes of the turns of a loop, the last binding the fastest."""
    if not bindings:
        yield scope
        return
    first, *rest = bindings
    values = expect(ctx, scope, first.values, (tuple, range), "a list or a range such as `0..S`")
    ctx.step(first, len(values))
    scope.check_free(first.name)
    for value in values:
        yield from turns(ctx, scope.inside({first.name.text: value}), tuple(rest))


def _name(ctx: Context, scope: Scope, e: nodes.Name) -> Any:
    return scope.find(e.text, e.span)


def _number(ctx: Context, scope: Scope, e: nodes.Number) -> int | Fraction:
    return Fraction(e.text) if "." in e.text else int(e.text)


def _text(ctx: Context, scope: Scope, e: nodes.Text) -> str:
    return e.value


def _list(ctx: Context, scope: Scope, e: nodes.ListOf) -> tuple[Any, ...]:
    return tuple(evaluate(ctx, scope, item) for item in e.items)


def _comprehension(ctx: Context, scope: Scope, e: nodes.Comprehension) -> tuple[Any, ...]:
    return tuple(evaluate(ctx, inner, e.item) for inner in turns(ctx, scope, e.bindings))


def _attribute(ctx: Context, scope: Scope, e: nodes.Attribute) -> Any:
    return attribute(ctx, e, evaluate(ctx, scope, e.target))


def _call(ctx: Context, scope: Scope, e: nodes.Call) -> Any:
    function = evaluate(ctx, scope, e.function)
    given, keyed = _arguments(ctx, scope, e.arguments)
    return call(ctx, e, function, given, keyed, evaluate)


def _pick(ctx: Context, scope: Scope, e: nodes.Pick) -> Any:
    value = evaluate(ctx, scope, e.target)
    for key in e.keys:
        name = key.name if isinstance(key, nodes.Keyed) else None
        at = key.value if isinstance(key, nodes.Keyed) else key
        value = pick(ctx, e, value, name, evaluate(ctx, scope, at), at)
    return value


def _arguments(
    ctx: Context, scope: Scope, arguments: tuple[nodes.Expr | nodes.Keyed, ...]
) -> tuple[list[Any], dict[str, Any]]:
    given = [evaluate(ctx, scope, a) for a in arguments if not isinstance(a, nodes.Keyed)]
    return given, {a.name.text: evaluate(ctx, scope, a.value) for a in arguments if isinstance(a, nodes.Keyed)}


def truth(ctx: Context, scope: Scope, e: nodes.Expr) -> bool:
    return bool(expect(ctx, scope, e, bool, "a truth value such as `D > 1`"))


def _unary(ctx: Context, scope: Scope, e: nodes.Unary) -> Any:
    if e.operator == "not":
        return not truth(ctx, scope, e.operand)
    value = evaluate(ctx, scope, e.operand)
    if isinstance(value, bool) or not isinstance(value, int | Fraction):
        raise PlanError(WrongType(e.operand.span, "a number", kind_of(value), ""))
    return -value


def _binary(ctx: Context, scope: Scope, e: nodes.Binary) -> Any:
    if e.operator == "and":
        return truth(ctx, scope, e.left) and truth(ctx, scope, e.right)
    if e.operator == "or":
        return truth(ctx, scope, e.left) or truth(ctx, scope, e.right)
    return binary(ctx, e, evaluate(ctx, scope, e.left), evaluate(ctx, scope, e.right))


def _conditional(ctx: Context, scope: Scope, e: nodes.Conditional) -> Any:
    return evaluate(ctx, scope, e.then if truth(ctx, scope, e.test) else e.other)


EVALUATORS: dict[type[Any], Callable[..., Any]] = {
    nodes.Name: _name,
    nodes.Number: _number,
    nodes.Text: _text,
    nodes.ListOf: _list,
    nodes.Comprehension: _comprehension,
    nodes.Attribute: _attribute,
    nodes.Call: _call,
    nodes.Pick: _pick,
    nodes.Unary: _unary,
    nodes.Binary: _binary,
    nodes.Conditional: _conditional,
}
