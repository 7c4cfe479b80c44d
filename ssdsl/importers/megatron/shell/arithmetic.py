"""Arithmetic of the shell, `$(( ... ))`, and of `bc`."""

import ast
import operator
import re
from collections.abc import Callable

NUMBERS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.Pow: lambda a, b: a**b if abs(b) < 64 else 0,
}
COMPARED: dict[type, Callable[[float, float], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
LONGEST = 1000


def value_of(text: str, is_whole: bool = True) -> float | None:
    """The number that an expression is, None where it is none. `is_whole` divides as the shell does.

    >>> value_of("8 * (2 + 1) / 5"), value_of("1 > 2 || 3 == 3")
    (4, 1)
    """
    written = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or "))
    if len(written) > LONGEST:
        return None
    try:
        return _value(ast.parse(" ".join(written.split()), mode="eval").body, is_whole)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr, is_whole: bool) -> float:
    def of(own: ast.expr) -> float:
        return _value(own, is_whole)

    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -of(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return of(operand)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return int(not of(operand))
        case ast.BinOp(op=ast.Div(), left=left, right=right):
            quotient = of(left) / of(right)
            return int(quotient) if is_whole else quotient
        case ast.BinOp(op=own, left=left, right=right) if type(own) in NUMBERS:
            return NUMBERS[type(own)](of(left), of(right))
        case ast.Compare(left=left, ops=[own], comparators=[right]) if type(own) in COMPARED:
            return int(COMPARED[type(own)](of(left), of(right)))
        case ast.BoolOp(op=ast.And(), values=values):
            return int(all(of(value) for value in values))
        case ast.BoolOp(values=values):
            return int(any(of(value) for value in values))
    raise ValueError
