"""Selections by path, kind, index, phase and state; also items of lists and slices of meshes."""

from collections.abc import Hashable
from math import prod

from ssdsl.lang import nodes
from ssdsl.lang.formatter.spell import POST, spell
from ssdsl.plan.context import Context
from ssdsl.plan.errors.place import Idle, NoSuchAxis, NoSuchDevice, Unread
from ssdsl.plan.errors.select import (
    FixedTwice,
    NoSuchIndex,
    NoSuchKind,
    NoSuchPart,
    NoSuchPath,
    NothingSelected,
    NotWhole,
)
from ssdsl.plan.errors.values import NoSuchAttribute, NoSuchItem, Wanted, required
from ssdsl.plan.facts import NamedPart, index_names
from ssdsl.plan.plan import Mesh, Phase, State
from ssdsl.plan.values import (
    ActivationsOf,
    Devices,
    GathersOf,
    Marker,
    Selection,
    StateOf,
    Value,
    is_list,
    is_selection,
    is_text,
    is_whole,
    item,
)
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError

PHASES = {str(p): p for p in Phase}
STATES = {str(s): s for s in State}
GATHERS, ACTIVATIONS = "gathers", "activations"


def attribute(ctx: Context, e: nodes.Attribute, value: Value) -> Selection | StateOf | GathersOf | ActivationsOf:
    """`.fwd`, `.weights`, `.gathers`, `.linear`."""
    name = e.name.text
    if not isinstance(value, Selection):
        raise PlanError(NoSuchAttribute(e.name.span, value, name))
    if name in PHASES:
        if value.phase is not None:
            raise PlanError(FixedTwice(e.name.span, f".{value.phase}"))
        return replace(value, phase=PHASES[name])
    if name in STATES:
        require_whole(ctx, value, e.target, f".{name}")
        return StateOf(value.operators, STATES[name], value.of_items)
    if name == GATHERS:
        require_whole(ctx, value, e.target, f".{name}")
        return GathersOf(value.operators)
    if name == ACTIVATIONS:
        require_whole(ctx, value, e.target, f".{name}")
        return ActivationsOf(value.operators, value.of_items)
    return _of_kind(ctx, e, value)


def _of_kind(ctx: Context, e: nodes.Attribute, value: Selection) -> Selection:
    kind = e.name.text
    found = frozenset(name for name in value.operators if ctx.model.operators[name].kind == kind)
    if not found and not (value.of_items and any(op.kind == kind for op in ctx.model.operators.values())):
        kinds = dict.fromkeys(op.kind for op in ctx.model.ordered(value.operators))
        is_module = any(unit & value.operators for unit in ctx.model.match(kind))
        raise PlanError(NoSuchKind(e.name.span, kind, tuple(kinds), spell(e.target, POST), is_module))
    return value.within(found)


def pick(ctx: Context, e: nodes.Pick, value: Value, name: nodes.Word | None, key: Value, at: nodes.Expr) -> Value:
    """`value[key]`, or `value[name = key]`; `at` is the expression of the key."""
    if isinstance(value, Devices) and name is not None:
        return slice_of(ctx, value, name, key, at)
    if is_list(value) and name is None:
        return _item(value, key, at)
    selection = required(value, is_selection, e.target, Wanted.PICKED)
    if name is not None:
        return _by_index(ctx, selection, name, key, at)
    return by_path(ctx, selection, required(key, is_text, at, Wanted.PATH_OR_INDEX), at)


def by_path(ctx: Context, value: Selection, pattern: str, at: nodes.Expr) -> Selection:
    """The operators beneath the modules that a pattern matches, one unit per module; raises PlanError if there are
    none."""
    if pattern not in ctx.model.matches:  # else it costs nothing
        ctx.budget.spend(at, 1 + len(ctx.model.paths) // 256)
    ctx.budget.spend(at, 1 + len(value.operators) // 512)
    units = tuple(kept for unit in ctx.model.match(pattern) if (kept := unit & value.operators))
    if not units and not (value.of_items and ctx.model.match(pattern)):
        paths = dict.fromkeys(op.path for op in ctx.model.ordered(value.operators))
        raise PlanError(NoSuchPath(at.span, ctx.model.graph.name, pattern, tuple(paths)))
    return replace(value, operators=frozenset[str]().union(*units), units=units)


def _item(value: tuple[Value, ...] | range, key: Value, at: nodes.Expr) -> Value:
    position = required(key, is_whole, at, Wanted.POSITION)
    if not 0 <= position < len(value):
        raise PlanError(NoSuchItem(at.span, position, len(value)))
    return item(value[position])


def _by_index(ctx: Context, value: Selection, name: nodes.Word, key: Value, at: nodes.Expr) -> Selection:
    """Fixes an index, or keeps the operators that have it (`any`) or lack it (`none`)."""
    if isinstance(key, Marker):
        if name.text in ctx.facts.broken:
            raise PlanError()
        has = frozenset(n for n in value.operators if ctx.facts.index(n, name.text))
        return value.within(has if key is Marker.ANY else value.operators - has)
    part = required(key, is_whole, at, Wanted.PART)
    is_known = bool(value.operators) or not value.of_items
    if is_known and not ctx.facts.count(value.operators, name.text):
        if name.text in ctx.facts.broken:
            raise PlanError()
        known = index_names(ctx.facts, ctx.model, value.operators)
        elsewhere = ctx.facts.count(frozenset(ctx.model.operators), name.text) > 0
        raise PlanError(NoSuchIndex(name.span, name.text, known, elsewhere))
    if any(name.text == fixed for fixed, _ in value.fixed):
        raise PlanError(FixedTwice(name.span, name.text))
    if run := next((run for run in ctx.facts.runs(value.operators, name.text) if run.has(part)), None):
        kept = ctx.facts.among(value.operators, run)
        ctx.facts.of_all_parts.update(value.operators - kept - ctx.model.parts.keys())
        value = value.within(kept)
    return replace(value, fixed=(*value.fixed, (name.text, part)))


def require_whole(ctx: Context, value: Selection, e: nodes.Expr, statement: str) -> None:
    """Raises PlanError for a selection that is limited to parts or a phase."""
    if value.phase is not None or value.fixed:
        index = value.fixed[0][0] if value.fixed else ""
        raise PlanError(NotWhole(e.span, statement, value.phase, index))


class NamesParts(Exception):
    """A statement names a part of an index that is not an operator of its own yet: it waits for the next reading."""

    def __init__(self, part: NamedPart) -> None:
        self.part = part


def whole_operators(ctx: Context, value: Value, e: nodes.Expr, statement: str, what: Hashable = None) -> frozenset[str]:
    """The operators of a statement that takes whole ones, and parts that a plan names; `what` it says of these is equal
    for parts that may stay together. There are none of an empty item of a list. Raises PlanError if none of others are
    selected, and NamesParts for parts that are no operators yet."""
    selection = required(value, is_selection, e, Wanted.OPERATORS)
    require_whole(ctx, replace(selection, fixed=()), e, statement)
    operators = selection.operators
    require_some(ctx, operators, selection.of_items, e, statement)
    if not operators:
        return operators
    for name, part in selection.fixed:
        if not 0 <= part < (count := ctx.facts.count(operators, name)):
            raise PlanError(NoSuchPart(e.span, name, part, count))
        if count > 1 and not ctx.facts.runs(operators, name):
            raise NamesParts(NamedPart(name, part, operators, (e.span, what), e.span))
    ctx.budget.spend(e, 1 + len(operators) // 256)
    if statement != "split" and not ctx.model.only_compute(operators):
        ctx.facts.warnings.append(Unread(ctx.stack.site or e.span, statement, Idle.UNPLACED))
    return operators


def require_some(ctx: Context, found: frozenset[str], of_items: bool, e: nodes.Expr, statement: str) -> None:
    """Raises PlanError if nothing is selected; but items of a list may be empty as long as others are not."""
    if of_items:
        ctx.facts.selected[ctx.stack.site or e.span, statement] += bool(found)
    elif not found:
        raise PlanError(NothingSelected(e.span))


def mesh_size(mesh: Mesh, fixed: tuple[tuple[str, int], ...] = ()) -> int:
    """The number of devices of a mesh, or of a slice of it."""
    return prod(n for axis, n in mesh.axes if axis not in dict(fixed))


def slice_of(ctx: Context, value: Devices, name: nodes.Word, key: Value, at: nodes.Expr) -> Devices:
    """`gpus[pp = s]`: the devices at one coordinate of an axis; raises PlanError if there are none."""
    axes = dict(ctx.facts.meshes[value.mesh].axes)
    if name.text not in axes:
        raise PlanError(NoSuchAxis(name.span, value.mesh, name.text, tuple(axes)))
    coordinate = required(key, is_whole, at, Wanted.WHOLE)
    fixed = dict(value.fixed)
    if name.text in fixed:
        raise PlanError(FixedTwice(name.span, name.text))
    if not 0 <= coordinate < axes[name.text]:
        raise PlanError(NoSuchDevice(at.span, name.text, value.mesh, coordinate, axes[name.text]))
    fixed[name.text] = coordinate
    return Devices(value.mesh, tuple((axis, fixed[axis]) for axis in axes if axis in fixed))
