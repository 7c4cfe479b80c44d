"""Binary operators: arithmetic, comparison, ranges, lists and the algebra of selections."""

import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.select import DifferentParts
from ssdsl.plan.errors.values import DivisionByZero, NumberTooLarge, WrongType
from ssdsl.plan.eval.values import Selection, is_number, kind_of
from ssdsl.text.diagnostic import PlanError

LARGEST = 1 << 62
ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}
COMPARISON: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
ALGEBRA: dict[str, Callable[[Any, Any], Any]] = {"|": operator.or_, "&": operator.and_, "-": operator.sub}


def binary(ctx: Context, e: nodes.Binary, left: Any, right: Any) -> Any:
    """The value of `left operator right`; `and` and `or` are not among them."""
    sign = e.operator
    if sign in ("==", "!="):
        return (_as_list(left) == _as_list(right)) is (sign == "==")
    if isinstance(left, Selection) and isinstance(right, Selection) and sign in ALGEBRA:
        return _algebra(ctx, e, left, right)
    if _is_numeric(left) and _is_numeric(right):
        return _numbers(e, left, right)
    if sign == "+" and isinstance(left, tuple | range) and isinstance(right, tuple | range):
        ctx.step(e, 1 + (len(left) + len(right)) // 64)
        return (*left, *right)
    raise PlanError(_mismatch(e, left, right))


def _as_list(value: Any) -> Any:
    """A range is the list of its numbers."""
    return tuple(value) if isinstance(value, range) else value


def _is_numeric(value: Any) -> bool:
    return isinstance(value, int | Fraction) and not isinstance(value, bool)


def _numbers(e: nodes.Binary, left: Any, right: Any) -> Any:
    if e.operator in COMPARISON:
        return COMPARISON[e.operator](left, right)
    if e.operator == "..":
        if not (is_number(left) and is_number(right)):
            raise PlanError(WrongType(e.span, "whole numbers around `..`", "a fraction", ""))
        return range(left, right)
    if e.operator not in ARITHMETIC:
        raise PlanError(WrongType(e.left.span, "selections", "a number", f"`{e.operator}` combines selections"))
    if e.operator in ("//", "%") and right == 0:
        raise PlanError(DivisionByZero(e.right.span))
    value = ARITHMETIC[e.operator](left, right)
    if abs(value) > LARGEST or (isinstance(value, Fraction) and value.denominator > LARGEST):
        raise PlanError(NumberTooLarge(e.span))
    return value


def _algebra(ctx: Context, e: nodes.Binary, left: Selection, right: Selection) -> Selection:
    if (left.fixed, left.phase) != (right.fixed, right.phase):
        raise PlanError(DifferentParts(e.span))
    ctx.step(e, 1 + (len(left.operators) + len(right.operators)) // 512)
    operators = ALGEBRA[e.operator](left.operators, right.operators)
    return Selection(operators, _units(e.operator, left, right, operators), left.fixed, left.phase)


def _units(sign: str, left: Selection, right: Selection, operators: frozenset[str]) -> tuple[frozenset[str], ...]:
    """A union has the units of both sides if both have some; the others those of the left, as far as they remain."""
    if sign == "|":
        return tuple(dict.fromkeys(left.units + right.units)) if left.units and right.units else ()
    return tuple(kept for unit in left.units if (kept := unit & operators))


def _mismatch(e: nodes.Binary, left: Any, right: Any) -> WrongType:
    """The first side that does not fit the operator."""
    algebra = e.operator in ("|", "&") or (e.operator == "-" and isinstance(left, Selection))
    if algebra:
        side, value = (e.right, right) if isinstance(left, Selection) else (e.left, left)
        return WrongType(side.span, "a selection of operators", kind_of(value), "")
    both_lists = e.operator == "+" and isinstance(left, tuple | range)
    if both_lists:
        return WrongType(e.right.span, "a list", kind_of(right), "")
    side, value = (e.right, right) if _is_numeric(left) else (e.left, left)
    hint = "selections are united with `|`" if e.operator == "+" and isinstance(value, Selection) else ""
    return WrongType(side.span, "a number", kind_of(value), hint)
