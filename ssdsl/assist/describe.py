"""Describes values: in a few words after a name, or as a table when asked for."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

from rich.table import Table
from rich.text import Text

from ssdsl.lang.formatter.spell import spell
from ssdsl.lang.nodes import LetStatement
from ssdsl.lang.suggest import counted, joined
from ssdsl.model.graph import Operator
from ssdsl.plan.context import Context
from ssdsl.plan.paths import starred, starred_module
from ssdsl.plan.values import ActivationsOf, Builtin, Devices, GathersOf, Marker, PlanFunction, Selection, StateOf
from ssdsl.show.layout import result_text
from ssdsl.show.pattern import merged

MOST = 8
PLURALS = {"axis": "axes"}


def describe(ctx: Context, value: Any) -> str:
    """A value in a few words."""
    match value:
        case Selection():
            return _selection(ctx, value)
        case StateOf(operators, state):
            return f"the {state} of {_operators(ctx, operators)}"
        case ActivationsOf(operators):
            return f"what backward keeps of {_operators(ctx, operators)}"
        case GathersOf(operators):
            return f"what {_operators(ctx, operators)} gather"
        case Devices():
            return devices_text(ctx, value)
        case PlanFunction(node):
            return spell(node.value) if isinstance(node, LetStatement) else "a function"
        case Builtin(_, takes):
            return f"a function of {takes.strip('()')}"
        case range():
            return f"{value.start}..{value.stop}, {counted(len(value), 'number')}"
        case tuple():
            return _list(ctx, value)
    return plain(value)


def plain(value: Any) -> str:
    """A number, a truth value or a string, in the notation of a plan."""
    match value:
        case bool():
            return str(value).lower()
        case Fraction():
            return str(float(value)) if Fraction(str(float(value))) == value else str(value)
        case Marker():
            return str(value)
        case str():
            return f'"{value}"'
    return str(value)


def shown(ctx: Context, value: Any) -> tuple[str | Table, ...]:
    """The answer to an expression that is typed alone."""
    if isinstance(value, Selection):
        return _selection(ctx, value), _table(_rows(ctx, value))
    if isinstance(value, tuple) and any(isinstance(item, Selection) for item in value):
        rows = [(str(i), describe(ctx, item)) for i, item in enumerate(value[: 4 * MOST])]
        return describe(ctx, value), _table([*rows, ("...", "")] if len(value) > 4 * MOST else rows)
    return (describe(ctx, value),)


def described(ctx: Context, value: Any) -> Iterator[str]:
    """A value in lines: for a selection its kinds, modules, dimensions, indices and devices."""
    yield describe(ctx, value)
    if isinstance(value, Selection):
        yield from (f"{name}: {text}" for name, text in _rows(ctx, value) if text)
    elif isinstance(value, tuple):
        yield from (f"{i}: {describe(ctx, item)}" for i, item in enumerate(value[:MOST]) if isinstance(item, Selection))


def devices_text(ctx: Context, devices: Devices) -> str:
    """`gpus[pp = 0] (2 devices)`."""
    size, fixed = 1, dict(devices.fixed)
    for axis, n in ctx.facts.meshes[devices.mesh].axes:
        size *= 1 if axis in fixed else n
    at = ", ".join(f"{axis} = {coordinate}" for axis, coordinate in devices.fixed)
    return f"{devices.mesh}{f'[{at}]' if at else ''} ({counted(size, 'device')})"


def _operators(ctx: Context, names: frozenset[str]) -> str:
    """The number of operators; those that depend on no weights, which no plan places, are counted separately."""
    placed = len(ctx.model.only_compute(names))
    others = len(names) - placed
    return f"{counted(placed, 'operator')}{f', and {others} of inputs and constants' if others else ''}"


def _selection(ctx: Context, value: Selection) -> str:
    at = [f".{value.phase}"] if value.phase else []
    at += [f"{name} = {part}" for name, part in value.fixed]
    return f"{', '.join(at)} of {_operators(ctx, value.operators)}" if at else _operators(ctx, value.operators)


def _list(ctx: Context, value: tuple[Any, ...]) -> str:
    if value and all(isinstance(item, Selection) for item in value):
        sizes = [f"{len(ctx.model.only_compute(item.operators)):,}" for item in value]
        sizes = sizes if len(sizes) <= MOST else [*sizes[: MOST - 1], "...", sizes[-1]]
        one = joined(sizes, "and")
        return f"a list of {counted(len(value), 'selection')} ({one} operators)"
    items = [describe(ctx, item) for item in value[:MOST]]
    more = f", ... {len(value)} in all" if len(value) > MOST else ""
    return f"[{', '.join(items)}{more}]"


def _rows(ctx: Context, value: Selection) -> Iterator[tuple[str, str]]:
    """The kinds, modules, dimensions, indices, results on a device and devices of the placed operators."""
    operators = ctx.model.ordered(ctx.model.only_compute(value.operators) or value.operators)
    kinds = Counter(op.kind for op in operators)
    yield "kinds", _some(f"{count} {kind}" for kind, count in kinds.most_common())
    yield "modules", _some(_modules(ctx, operators))
    dimensions = dict.fromkeys((starred(d.name), d.size) for op in operators for d in op.dims if d.size > 1)
    yield "dimensions", _some(f"{name}={size}" for name, size in dimensions)
    yield "indices", _some(_indices(ctx, operators))
    yield (
        "makes",
        _some(dict.fromkeys(result_text(op, ctx.facts.of(op.name)) for op in operators if not op.row.regroups)),
    )
    places = Counter(str(place) for op in operators if (place := ctx.facts.of(op.name).place) is not None)
    yield "devices", _some(name if count == len(operators) else f"{name} ({count})" for name, count in places.items())


def _modules(ctx: Context, operators: Sequence[Operator]) -> Iterator[str]:
    """The module paths, with those of repeated layers joined, and the parts that they are."""
    groups: dict[tuple[str, str], list[str]] = {}
    for op in operators:
        groups.setdefault((starred_module(op.module), ctx.facts.of(op.name).selected), []).append(op.module)
    yield from (f"{merged(paths)}{parts}" for (_, parts), paths in groups.items())


def _indices(ctx: Context, operators: Sequence[Operator]) -> Iterator[str]:
    """`tp=2 by heads (24)`: with the number of operators that have the index, unless all have it."""
    found: Counter[tuple[str, int, str]] = Counter()
    for op in operators:
        for index in ctx.facts.of(op.name).indices:
            found[index.name, index.digit.parts, op.dims[index.dim].name.removesuffix(".0")] += 1
    for (name, parts, dimension), count in found.items():
        yield f"{name}={parts} by {dimension}{'' if count == len(operators) else f' ({count})'}"


def _some(words: Iterable[str]) -> str:
    every = list(words)
    return ", ".join(every[: 2 * MOST]) + (f" and {len(every) - 2 * MOST} more" if len(every) > 2 * MOST else "")


def _table(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, text in rows:
        if text:
            table.add_row(Text(f"  {name}", style="cyan"), Text(text))
    return table
