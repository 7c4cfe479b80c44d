"""Evaluates an expression: names and items, calls of functions, and binary operators: arithmetic, comparison, ranges,
lists and the algebra of selections.

Calls have no recursion and a bounded depth. A mistake inside also shows the place of the call."""

import operator
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, TypeVar, assert_never

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.names import CallsTooDeep, Recursion, WrongArguments
from ssdsl.plan.errors.select import DifferentParts
from ssdsl.plan.errors.traced import Traced
from ssdsl.plan.errors.values import DivisionByZero, Kind, NumberTooLarge, Wanted, WrongType, required
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.eval.select import attribute, pick
from ssdsl.plan.values import (
    Builtin,
    Number,
    PlanFunction,
    Selection,
    Value,
    is_list,
    is_number,
    is_truth,
    is_whole,
    item,
)
from ssdsl.record import replace
from ssdsl.text.diagnostic import Diagnostic, PlanError

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
    return expect(ctx, e, is_truth, Wanted.TRUTH)


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
        yield from turns(ctx.inside(ctx.scope.inside({first.name.text: item(value)})), tuple(rest))


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


LARGEST = 1 << 62
ARITHMETIC: dict[str, Callable[[Number, Number], Number]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}
COMPARISON: dict[str, Callable[[Number, Number], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Names = frozenset[str]
ALGEBRA: dict[str, Callable[[Names, Names], Names]] = {"|": operator.or_, "&": operator.and_, "-": operator.sub}
OF_ITEMS: dict[str, Callable[[bool, bool], bool]] = {
    "|": operator.and_,
    "&": operator.or_,
    "-": lambda left, _: left,
}


def binary(ctx: Context, e: nodes.Binary, left: Value, right: Value) -> Value:
    """The value of `left operator right`, for all operators except `and` and `or`.

    Raises PlanError if the operator does not take these values.
    """
    sign = e.operator
    if sign in ("==", "!="):
        return (_comparable(left) == _comparable(right)) is (sign == "==")
    if is_number(left) and is_number(right):
        return _numbers(e, left, right)
    if isinstance(left, Selection) and isinstance(right, Selection) and sign in ALGEBRA:
        return _algebra(ctx, e, left, right)
    if sign == "+" and is_list(left) and is_list(right):
        ctx.budget.spend(e, 1 + (len(left) + len(right)) // 64)
        return (*left, *right)
    raise PlanError(_mismatch(e, left, right))


def _comparable(value: Value) -> Any:
    """A range equals the list of its numbers: `0..2 == [0, 1]`."""
    return tuple(value) if isinstance(value, range) else value


def _numbers(e: nodes.Binary, left: Number, right: Number) -> Value:
    sign = e.operator
    if sign in COMPARISON:
        return COMPARISON[sign](left, right)
    if sign == "..":
        if not (is_whole(left) and is_whole(right)):
            side, value = (e.right, right) if is_whole(left) else (e.left, left)
            raise PlanError(WrongType(side.span, Wanted.AROUND_RANGE, value))
        return range(left, right)
    if sign not in ARITHMETIC:
        raise PlanError(WrongType(e.left.span, Wanted.SELECTIONS, left))
    if sign in ("//", "%") and right == 0:
        raise PlanError(DivisionByZero(e.right.span))
    value = ARITHMETIC[sign](left, right)
    if not -LARGEST <= value <= LARGEST or (isinstance(value, Fraction) and value.denominator > LARGEST):
        raise PlanError(NumberTooLarge(e.span))
    return value


def _algebra(ctx: Context, e: nodes.Binary, left: Selection, right: Selection) -> Selection:
    if (left.fixed, left.phase) != (right.fixed, right.phase):
        raise PlanError(DifferentParts(e.span))
    ctx.budget.spend(e, 1 + (len(left.operators) + len(right.operators)) // 512)
    operators = ALGEBRA[e.operator](left.operators, right.operators)
    of_items = OF_ITEMS[e.operator](left.of_items, right.of_items)
    return Selection(operators, _units(e.operator, left, right, operators), left.fixed, left.phase, of_items)


def _units(sign: str, left: Selection, right: Selection, operators: Names) -> tuple[Names, ...]:
    """The units of the result: those of both sides for a union, if both have some, else the remaining ones of the left
    side."""
    if sign == "|":
        return tuple(dict.fromkeys(left.units + right.units)) if left.units and right.units else ()
    return left.within(operators).units


def _mismatch(e: nodes.Binary, left: Value, right: Value) -> WrongType:
    """The mistake: of the side that does not fit the operator, or that does not fit the other side."""
    if e.operator in ("|", "&") or (e.operator == "-" and isinstance(left, Selection)):
        return _wrong_side(e, left, right, isinstance(left, Selection), Wanted.OPERATORS)
    if e.operator == "+" and is_list(left):
        return WrongType(e.right.span, Wanted.LIST, right)
    return _wrong_side(e, left, right, is_number(left), Wanted.NUMBER)


def _wrong_side(e: nodes.Binary, left: Value, right: Value, is_left_right: bool, wanted: Wanted) -> WrongType:
    return WrongType(e.right.span, wanted, right) if is_left_right else WrongType(e.left.span, wanted, left)
