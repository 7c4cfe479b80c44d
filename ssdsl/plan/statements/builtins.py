"""The words that every plan has: `model`, constants, and functions such as `balance`."""

from collections.abc import Callable
from typing import Any

from ssdsl.lang import nodes
from ssdsl.lang.errors.text import FREE
from ssdsl.plan.context import Context
from ssdsl.plan.errors.names import WrongArguments
from ssdsl.plan.errors.values import Wanted, items_of, required
from ssdsl.plan.eval.balance import balance
from ssdsl.plan.eval.expressions import call
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.eval.select import by_path
from ssdsl.plan.eval.stages import cut, slices, widths
from ssdsl.plan.statements.execute import execute
from ssdsl.plan.statements.split import find_dims
from ssdsl.plan.statements.use import definitions, library_file
from ssdsl.plan.values import Builtin, Marker, Selection, Value, is_list, is_selection, is_text, is_whole
from ssdsl.text.diagnostic import PlanError

Arguments = tuple[Value, ...]
SCHEDULE = "(stages, micro-batches) or (stages, micro-batches, ahead = numbers, late = numbers)"
NUMBERS = "ahead", "late"


def with_builtins(ctx: Context) -> Context:
    """The context with a scope for the plan's own names, inside the scope of built-in words."""
    return ctx.inside(Scope(builtin_scope(ctx)))


def builtin_scope(ctx: Context) -> Scope:
    """The outermost scope: `model`, the functions and the constants of the language."""
    scope = Scope()
    scope.values |= {
        "model": Selection(frozenset(ctx.model.operators)),
        "none": Marker.NONE,
        "any": Marker.ANY,
        "true": True,
        "false": False,
        "balance": Builtin("balance", "(operators, stages or their shares)", 2, 2, balance),
        "cut": Builtin("cut", "(operators, stages or their shares, before = paths)", 2, 2, cut, frozenset({"before"})),
        "widths": Builtin("widths", "(devices, stages, allowed, each = numbers)", 3, 3, widths, frozenset({"each"})),
        "slices": Builtin("slices", "(a number of slices, each = lengths)", 1, 1, slices, frozenset({"each"})),
        "schedule": Builtin("schedule", SCHEDULE, 2, 4, _schedule, frozenset(NUMBERS)),
        "each": Builtin("each", "a path", 1, 1, _each),
        "size": Builtin("size", "operators and the name of a dimension", 2, 2, _size),
        "len": Builtin("len", "a list", 1, 1, _len),
        "min": Builtin("min", "numbers, or a list of them", 1, 100, _extreme(min)),
        "max": Builtin("max", "numbers, or a list of them", 1, 100, _extreme(max)),
    }
    scope.free = frozenset(FREE)
    return scope


def _each(ctx: Context, e: nodes.Call, given: Arguments) -> Arguments:
    """One selection per module that a path matches."""
    at, (pattern,) = e.arguments[0], given
    assert not isinstance(at, nodes.Keyed)
    path = required(pattern, is_text, at, Wanted.PATH)
    found = by_path(ctx, Selection(frozenset(ctx.model.operators)), path, at)
    return tuple(Selection(unit, (unit,)) for unit in found.units)


def _schedule(ctx: Context, e: nodes.Call, given: Arguments, **keyed: Value) -> Value:
    """Orders the tasks of a pipeline: as 1F1B, or by two numbers for each stage. Both are functions of the standard
    library, where their clocks stand (`stdlib/pipeline.ssp`)."""
    numbers = dict(zip(NUMBERS, given[2:], strict=False)) | keyed
    if len(numbers) not in (0, 2) or len(given[2:]) + len(keyed) != len(numbers):
        raise PlanError(WrongArguments(e.span, "schedule", SCHEDULE, len(given), tuple(keyed)))
    name = "ahead_and_late" if numbers else "one_f_one_b"
    library = definitions(ctx, *library_file("pipeline"), execute, frozenset([name]))
    return call(ctx, e, library.values[name], [*given[:2]], numbers)


def _size(ctx: Context, e: nodes.Call, given: Arguments) -> int:
    """The size of a dimension of operators, the largest of several; 0 if none of them has it."""
    ops, name = e.arguments
    assert not isinstance(ops, nodes.Keyed) and not isinstance(name, nodes.Keyed)
    selection, dim = (
        required(given[0], is_selection, ops, Wanted.OPERATORS),
        required(given[1], is_text, name, Wanted.DIMENSION),
    )
    places = find_dims(ctx, selection.operators, dim).places
    return max((operator.dims[at].size for operator, at in places), default=0)


def _len(ctx: Context, e: nodes.Call, given: Arguments) -> int:
    return len(required(given[0], is_list, e.arguments[0], Wanted.LIST))


def _extreme(choose: Callable[..., Any]) -> Callable[[Context, nodes.Call, Arguments], int]:
    """`min` or `max` of arguments, or of the items of one list."""

    def function(ctx: Context, e: nodes.Call, given: Arguments) -> int:
        if len(given) == 1 and is_list(given[0]):
            return int(choose(items_of(ctx, given[0], is_whole, e.arguments[0], Wanted.NUMBERS)))
        return int(choose(required(n, is_whole, at, Wanted.NUMBERS) for n, at in zip(given, e.arguments, strict=True)))

    return function
