"""Evaluates an expression."""

from collections.abc import Iterator
from fractions import Fraction
from typing import TypeVar, assert_never

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.values import Kind, Wanted, required
from ssdsl.plan.eval.calls import call
from ssdsl.plan.eval.operations import binary
from ssdsl.plan.eval.select import attribute, pick
from ssdsl.plan.eval.values import Value, is_a, is_list, is_number, is_whole

T = TypeVar("T")


def evaluate(ctx: Context, e: nodes.Expr) -> Value:
    """The value of an expression. A call of a `def` also adds the facts of its statements. Raises PlanError."""
    match e:
        case nodes.NameExpression():
            return ctx.scope.find(e.text, e.span)
        case nodes.Binary():
            return _binary(ctx, e)
        case nodes.Number():
            return Fraction(e.text) if "." in e.text else int(e.text)
        case nodes.Pick():
            return _pick(ctx, e)
        case nodes.Attribute():
            return attribute(ctx, e, evaluate(ctx, e.target))
        case nodes.Text(text):
            return text
        case nodes.Call():
            return _call(ctx, e)
        case nodes.ListOf(items):
            return tuple(evaluate(ctx, item) for item in items)
        case nodes.Comprehension(item, bindings):
            return tuple(evaluate(inner, item) for inner in turns(ctx, bindings))
        case nodes.Conditional(then, test, other):
            return evaluate(ctx, then if truth(ctx, test) else other)
        case nodes.Unary():
            return _unary(ctx, e)
        case _:
            assert_never(e)


def expect(ctx: Context, e: nodes.Expr, kind: Kind[T], wanted: Wanted) -> T:
    """The value of an expression, which must be of this kind; raises PlanError otherwise."""
    return required(evaluate(ctx, e), kind, e, wanted)


def whole_number(ctx: Context, e: nodes.Expr) -> int:
    return expect(ctx, e, is_whole, Wanted.WHOLE)


def truth(ctx: Context, e: nodes.Expr) -> bool:
    return expect(ctx, e, is_a(bool), Wanted.TRUTH)


def turns(ctx: Context, bindings: tuple[nodes.Binding, ...]) -> Iterator[Context]:
    """The contexts of the turns of a loop; the last binding changes fastest."""
    if not bindings:
        yield ctx
        return
    first, *rest = bindings
    values = expect(ctx, first.values, is_list, Wanted.LOOP)
    ctx.budget.spend(first, len(values))
    ctx.scope.check_free(first.name)
    for value in values:
        yield from turns(ctx.inside(ctx.scope.inside({first.name.text: value})), tuple(rest))


def _call(ctx: Context, e: nodes.Call) -> Value:
    """Evaluates the function, then its arguments in their order, then the call."""
    function = evaluate(ctx, e.function)
    given = [evaluate(ctx, a) for a in e.arguments if not isinstance(a, nodes.Keyed)]
    keyed = {a.name.text: evaluate(ctx, a.value) for a in e.arguments if isinstance(a, nodes.Keyed)}
    return call(ctx, e, function, given, keyed)


def _pick(ctx: Context, e: nodes.Pick) -> Value:
    """`value[a, m = b]` is `value[a][m = b]`."""
    value = evaluate(ctx, e.target)
    for key in e.keys:
        name = key.name if isinstance(key, nodes.Keyed) else None
        at = key.value if isinstance(key, nodes.Keyed) else key
        value = pick(ctx, e, value, name, evaluate(ctx, at), at)
    return value


def _unary(ctx: Context, e: nodes.Unary) -> Value:
    if e.operator == "not":
        return not truth(ctx, e.operand)
    return -expect(ctx, e.operand, is_number, Wanted.NUMBER)


def _binary(ctx: Context, e: nodes.Binary) -> Value:
    """The value of a binary operator; `and` and `or` evaluate their right side only where it matters."""
    if e.operator == "and":
        return truth(ctx, e.left) and truth(ctx, e.right)
    if e.operator == "or":
        return truth(ctx, e.left) or truth(ctx, e.right)
    return binary(ctx, e, evaluate(ctx, e.left), evaluate(ctx, e.right))
