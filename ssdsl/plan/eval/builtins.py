"""The words that every plan has."""

from collections.abc import Callable
from typing import Any

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.values import WrongType
from ssdsl.plan.eval.balance import balance
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.eval.select import by_path
from ssdsl.plan.eval.values import Builtin, Marker, Selection, is_number, kind_of
from ssdsl.text.diagnostic import PlanError


def builtin_scope(ctx: Context) -> Scope:
    """The outermost scope: `model`, `balance`, `each`, `len`, `min`, `max`, `none`, `any`, `true`, `false`."""
    scope = Scope()
    scope.values |= {
        "model": Selection(frozenset(ctx.operators)),
        "none": Marker.NONE,
        "any": Marker.ANY,
        "true": True,
        "false": False,
        "balance": Builtin("balance", "(operators, stages)", 2, 2, balance),
        "each": Builtin("each", "a path", 1, 1, _each),
        "len": Builtin("len", "a list", 1, 1, _len),
        "min": Builtin("min", "numbers, or a list of them", 1, 100, _extreme(min)),
        "max": Builtin("max", "numbers, or a list of them", 1, 100, _extreme(max)),
    }
    return scope


def _each(ctx: Context, e: nodes.Call, pattern: Any) -> tuple[Selection, ...]:
    """One selection per module that a path matches."""
    at = e.arguments[0]
    assert not isinstance(at, nodes.Keyed)
    if not isinstance(pattern, str):
        raise PlanError(WrongType(at.span, 'a path such as "h.*"', kind_of(pattern), ""))
    found = by_path(ctx, Selection(frozenset(ctx.operators)), pattern, at)
    return tuple(Selection(unit, (unit,)) for unit in found.units)


def _len(ctx: Context, e: nodes.Call, value: Any) -> int:
    if not isinstance(value, tuple | range):
        raise PlanError(WrongType(e.arguments[0].span, "a list", kind_of(value), ""))
    return len(value)


def _extreme(choose: Callable[..., Any]) -> Callable[..., Any]:
    def function(ctx: Context, e: nodes.Call, *values: Any) -> Any:
        is_list = len(values) == 1 and isinstance(values[0], tuple | range) and len(values[0]) > 0
        numbers = values[0] if is_list else values
        ctx.step(e, 1 + len(numbers) // 64)
        wrong = [] if isinstance(numbers, range) else [n for n in numbers if not is_number(n)]
        if wrong:
            raise PlanError(WrongType(e.span, "numbers", kind_of(wrong[0]), ""))
        return choose(numbers)

    return function
