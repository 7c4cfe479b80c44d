"""Binary operators: arithmetic, comparison, ranges, lists and the algebra of selections."""

import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.select import DifferentParts
from ssdsl.plan.errors.values import DivisionByZero, NumberTooLarge, Wanted, WrongType
from ssdsl.plan.eval.values import Number, Selection, Value, is_list, is_number, is_whole
from ssdsl.text.diagnostic import PlanError

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


def binary(ctx: Context, e: nodes.Binary, left: Value, right: Value) -> Value:
    """The value of `left operator right`, for all operators except `and` and `or`.

    Raises PlanError where the operator does not take these values.
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
            raise PlanError(WrongType(e.span, Wanted.AROUND_RANGE, right if is_whole(left) else left))
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
    return Selection(operators, _units(e.operator, left, right, operators), left.fixed, left.phase)


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
