"""Selections: by path, kind, index, phase and state; and the items of lists and slices of meshes."""

from typing import Any

from ssdsl.lang import nodes
from ssdsl.lang.suggest import listed, suggest
from ssdsl.plan.context import Context
from ssdsl.plan.errors.select import (
    FixedTwice,
    NoSuchIndex,
    NoSuchKind,
    NoSuchPath,
    NotWhole,
)
from ssdsl.plan.errors.values import NoSuchAttribute, NoSuchItem, WrongType
from ssdsl.plan.eval.paths import match_paths, nearest_paths
from ssdsl.plan.eval.values import Devices, Marker, Selection, StateOf, is_number, kind_of
from ssdsl.plan.plan import Phase, State
from ssdsl.plan.statements.mesh import slice_of
from ssdsl.text.diagnostic import PlanError

PHASES = {str(p): p for p in Phase}
STATES = {str(s): s for s in State}


def attribute(ctx: Context, e: nodes.Attribute, value: Any) -> Selection | StateOf:
    """`.fwd`, `.weights`, `.linear`."""
    name = e.name.text
    if not isinstance(value, Selection):
        raise PlanError(NoSuchAttribute(e.name.span, kind_of(value), name))
    if name in PHASES:
        if value.phase is not None:
            raise PlanError(FixedTwice(e.name.span, f".{value.phase}"))
        return Selection(value.operators, value.units, value.fixed, PHASES[name])
    if name in STATES:
        require_whole(value, e.target, f"`.{name}`")
        return StateOf(value.operators, STATES[name])
    return _of_kind(ctx, e, value)


def _of_kind(ctx: Context, e: nodes.Attribute, value: Selection) -> Selection:
    kind = e.name.text
    found = frozenset(name for name in value.operators if ctx.operators[name].kind == kind)
    if not found:
        kinds = list(dict.fromkeys(op.kind for op in ctx.ordered(value.operators)))
        hint = suggest(kind, [*kinds, *PHASES, *STATES])
        raise PlanError(NoSuchKind(e.name.span, kind, hint, f"its kinds are {listed(kinds)}" if kinds else ""))
    return _within(value, found)


def pick(ctx: Context, e: nodes.Pick, value: Any, name: nodes.Word | None, key: Any, at: nodes.Expr) -> Any:
    """`value[key]`, or `value[name = key]`."""
    if isinstance(value, Devices) and name is not None:
        return slice_of(ctx, value, name, key, at)
    if isinstance(value, tuple | range) and name is None:
        return _item(value, key, at)
    if not isinstance(value, Selection):
        raise PlanError(WrongType(e.target.span, "a selection, a list or a mesh in front of `[`", kind_of(value), ""))
    if name is not None:
        return _by_index(ctx, value, name, key, at)
    if not isinstance(key, str):
        expected = 'a path such as "h.*.mlp", or an index such as `m = 0`'
        raise PlanError(WrongType(at.span, expected, kind_of(key), ""))
    return by_path(ctx, value, key, at)


def by_path(ctx: Context, value: Selection, pattern: str, at: nodes.Expr) -> Selection:
    """The operators beneath the modules that a pattern matches, one unit per module."""
    if pattern not in ctx.matches:
        ctx.step(at, 1 + len(ctx.paths) // 256)
        ctx.matches[pattern] = match_paths(ctx.paths, pattern)
    ctx.step(at, 1 + len(value.operators) // 512)
    units = tuple(kept for unit in ctx.matches[pattern] if (kept := unit & value.operators))
    if not units:
        suggestion, modules = nearest_paths(pattern, [op.path for op in ctx.ordered(value.operators)])
        raise PlanError(NoSuchPath(at.span, ctx.graph.name, pattern, suggestion, modules))
    return Selection(frozenset().union(*units), units, value.fixed, value.phase)


def _item(value: tuple[Any, ...] | range, key: Any, at: nodes.Expr) -> Any:
    if not is_number(key):
        raise PlanError(WrongType(at.span, "a whole number, the position in a list", kind_of(key), ""))
    if not 0 <= key < len(value):
        hint = f"its items are 0 to {len(value) - 1}" if value else "the list is empty"
        raise PlanError(NoSuchItem(at.span, key, len(value), hint))
    return value[key]


def _by_index(ctx: Context, value: Selection, name: nodes.Word, key: Any, at: nodes.Expr) -> Selection:
    """Fix an index, or keep the operators that have it (`any`) or have it not (`none`)."""
    if isinstance(key, Marker):
        if name.text in ctx.broken:
            raise PlanError()
        has = frozenset(n for n in value.operators if ctx.count_of(n, name.text))
        return _within(value, has if key is Marker.ANY else value.operators - has)
    if not is_number(key):
        raise PlanError(WrongType(at.span, "a whole number, `none` or `any`", kind_of(key), ""))
    if not ctx.count(value.operators, name.text):
        _fail_index(ctx, value, name)
    if any(name.text == fixed for fixed, _ in value.fixed):
        raise PlanError(FixedTwice(name.span, name.text))
    return Selection(value.operators, value.units, (*value.fixed, (name.text, key)), value.phase)


def _fail_index(ctx: Context, value: Selection, name: nodes.Word) -> None:
    if name.text in ctx.broken:
        raise PlanError()
    known = ctx.indices_of(value.operators)
    raise PlanError(NoSuchIndex(name.span, name.text, f"they have {listed(known)}" if known else "they have none"))


def _within(value: Selection, operators: frozenset[str]) -> Selection:
    units = tuple(kept for unit in value.units if (kept := unit & operators))
    return Selection(operators, units, value.fixed, value.phase)


def require_whole(value: Selection, e: nodes.Expr, statement: str) -> None:
    """Raises PlanError for a selection of parts or phases."""
    if value.phase is not None:
        raise PlanError(NotWhole(e.span, statement, f"the phase `.{value.phase}`"))
    if value.fixed:
        raise PlanError(NotWhole(e.span, statement, f"the index `{value.fixed[0][0]}`"))
