"""`split`: the indices of operators. Where it splits state, `shard` takes over."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

from ssdsl.lang import nodes
from ssdsl.lang.formatter.spell import BINDING, POST, spell
from ssdsl.model.graph import ROOT, Dim, Operator, Origin, Stage
from ssdsl.plan.context import Context
from ssdsl.plan.errors.split import (
    BadSizes,
    CannotSplit,
    Contradiction,
    Division,
    DoesNotDivide,
    LeftWhole,
    NoSuchCondition,
    NoSuchDimension,
)
from ssdsl.plan.eval.expressions import evaluate
from ssdsl.plan.eval.paths import match_names, starred
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.eval.select import whole_operators
from ssdsl.plan.eval.values import StateOf
from ssdsl.plan.plan import Index
from ssdsl.plan.statements.parts import Parts, parts_of_cut
from ssdsl.plan.statements.shard import shard
from ssdsl.text.diagnostic import PlanError

SUM = BINDING["-"]
LONGEST = 60  # of an expression that a help repeats
Places = list[tuple[Operator, int]]  # operators, each with the number of the dimension that is cut


def split(ctx: Context, scope: Scope, s: nodes.Split) -> None:
    """Add the indices of one statement, the first the outermost; raises PlanError."""
    try:
        if s.where is not None and s.where.text != "possible":
            raise PlanError(NoSuchCondition(s.where.span, s.where.text))
        value = evaluate(ctx, scope, s.operators)
        if isinstance(value, StateOf):
            shard(ctx, s, value)
            return
        operators = whole_operators(ctx, value, s.operators, "split")
        for parts in _all_parts(ctx, scope, s, operators):
            _add_index(ctx, s, operators, parts)
    except PlanError:
        ctx.facts.broken.update(cut.name.text for cut in s.cuts)
        raise


def _all_parts(ctx: Context, scope: Scope, s: nodes.Split, operators: list[Operator]) -> Iterator[Parts]:
    """The parts of each index; raises PlanError, also with what is wrong with the dimension."""
    for cut in s.cuts:
        try:
            yield parts_of_cut(ctx, scope, cut)
        except PlanError as error:
            given = [op for op in operators if op.stage is not Stage.CONSTANT]
            if s.where is None and not find_dims(ctx, given, s.dim.text) and not _is_one(ctx, s.dim.text):
                raise PlanError(no_such_dimension(ctx, s.dim, given), *error.diagnostics) from error
            raise


def _add_index(ctx: Context, s: nodes.Split, operators: list[Operator], parts: Parts) -> None:
    """Add one index to all operators that have the dimension. Those that need all of it stay whole along it, as long as
    the statement names others."""
    given = [op for op in operators if op.stage is not Stage.CONSTANT]
    found = find_dims(ctx, given, s.dim.text)
    if not found and s.where is None:
        if not _is_one(ctx, s.dim.text):
            raise PlanError(no_such_dimension(ctx, s.dim, given))
        found = _of_one(ctx, s, given, parts)
    placed = [(op, op.dims[at]) for op, at in found if op.stage is Stage.COMPUTE]
    if placed and all(dim.fixed for _, dim in placed) and parts.count > 1 and s.where is None:
        raise PlanError(_cannot_split(ctx, s, operators, placed))
    if s.where:
        found = [(op, at) for op, at in found if _is_free(ctx, op, at, parts)]
    new = [(op, at) for op, at in found if not op.dims[at].fixed and not _is_known(ctx, s, operators, (op, at), parts)]
    if parts.count > 1:
        new = _dividing(ctx, s, new, parts) if s.where else new
        _check_sizes(ctx, s, new, parts)
    if parts.origin is not None:
        ctx.facts.cut_origins[parts.cut.span] = parts.origin
    for op, at in [*new]:
        if (beside := _beside(ctx, op, at, parts)) is not None:
            ctx.facts.set_index(op.name, beside)
            new.remove((op, at))
    for op, at in new:
        ctx.facts.add_index(op.name, _index(ctx, op, at, parts))
    for op, at in found:
        if op.dims[at].fixed and op.stage is Stage.COMPUTE and parts.count > 1:
            ctx.facts.leave_whole(op.name, _index(ctx, op, at, parts))


def _beside(ctx: Context, op: Operator, at: int, parts: Parts) -> Index | None:
    """The index of this name that cuts the queries, if this cuts the keys alike (or the other way round), for both."""
    known = ctx.facts.index(op.name, parts.cut.name.text)
    if known is None or known.also is not None or not _is_cut_so(ctx, op, at, parts, known):
        return None
    if op.dims[at].beside == known.dim:
        return replace(known, also=at)
    return replace(known, dim=at, also=known.dim) if op.dims[known.dim].beside == at else None


def _is_cut_so(ctx: Context, op: Operator, at: int, parts: Parts, known: Index) -> bool:
    """Whether an index makes these parts of a dimension."""
    return (known.count, known.at) == (parts.count, _index(ctx, op, at, parts).at)


def _is_one(ctx: Context, name: str) -> bool:
    """Whether the model gives the name to an axis of an input that has one position: no operator has it to cut."""
    graph = ctx.model.graph
    named = (
        pair for value, names in graph.axes.items() for pair in zip(names, graph.values[value].shape, strict=False)
    )
    return (name, 1) in named


def _of_one(ctx: Context, s: nodes.Split, operators: list[Operator], parts: Parts) -> Places:
    """Where an index of one part goes that cuts a dimension of one position: to any, as it cuts none. Raises PlanError
    for more parts."""
    if parts.count > 1:
        division = Division(parts.cut.name.text, parts.count, parts.origin)
        raise PlanError(DoesNotDivide(s.dim.span, s.dim.text, division, (), 1, 1, (ROOT,)))
    return [(op, at) for op in operators for at, dim in enumerate(op.dims[:1]) if not dim.fixed]


def _index(ctx: Context, op: Operator, at: int, parts: Parts) -> Index:
    """The index of a dimension, as it is cut so far."""
    name, span = parts.cut.name.text, parts.cut.span
    left = _sizes_left(ctx, op, at, before=name)
    regions = parts.regions(left[0]) if parts.go_into(left[0], unequal=_may_be_unequal(ctx, op, at, parts)) else None
    return Index(name, parts.count, at, span, regions)


def find_dims(ctx: Context, operators: list[Operator], name: str) -> Places:
    """The operators that have a dimension of this name, and its number; of `seq.0` and `seq.1`, `seq` is the first.

    A name may have stars, as `show dims` writes it, and begin at any segment: `h.*.mixer.A_log.1`. An axis of a weight
    names its dimension, the outermost of several, also where that has a better name.
    """
    own = match_names((dim.name for op in operators for dim in op.dims), name)
    plain = match_names((base_name(ctx, dim) for op in operators for dim in op.dims), name)
    classes = ctx.facts.aliases.get(name) or (frozenset() if own or plain else _of_weights(ctx, name))
    found: Places = []
    for op in operators:
        ways = (
            [dim.name in own for dim in op.dims],
            [base_name(ctx, dim) in plain for dim in op.dims],
            [dim.cls in classes for dim in op.dims],
        )
        if (at := next((way.index(True) for way in ways if any(way)), None)) is not None:
            dim = op.dims[at]  # what is windowed is cut as the results need it; keys may be cut by themselves
            found.append((op, at if dim.window is None or dim.beside is not None else dim.window.of))
    return found


def base_name(ctx: Context, dim: Dim) -> str:
    """The name without the number that tells `seq.0` and `seq.1` of one operator apart."""
    return ctx.model.graph.dim_names.get(dim.cls, dim.name)


def no_such_dimension(ctx: Context, name: nodes.Word, operators: list[Operator]) -> NoSuchDimension:
    """What the operators have instead."""
    known = dict.fromkeys(starred(base_name(ctx, dim)) for op in operators for dim in op.dims if dim.size > 1)
    return NoSuchDimension(name.span, name.text, tuple(known), tuple(ctx.facts.aliases))


def _of_weights(ctx: Context, name: str) -> frozenset[int]:
    """The dimensions that axes of weights have: `h.*.mlp.c_fc.weight.1`."""
    weights = ctx.model.graph.of(Origin.WEIGHT) if "." in name else ()
    axes = {f"{w.name}.{at}": axis for w in weights for at, axis in enumerate(w.factors) if axis}
    return frozenset(axes[axis][0] for axis in match_names(axes, name))


def _is_free(ctx: Context, op: Operator, at: int, parts: Parts) -> bool:
    """Whether an operator has no other index of this name, along another dimension or in other parts."""
    known = ctx.facts.index(op.name, parts.cut.name.text)
    return known is None or (known.dim == at and _is_cut_so(ctx, op, at, parts, known))


def _dividing(ctx: Context, s: nodes.Split, places: Places, parts: Parts) -> Places:
    """Those whose dimension goes into these parts; of the others a warning is noted, one for each size."""
    whole: dict[int, list[str]] = {}
    kept: Places = []
    for op, at in places:
        unequal = _may_be_unequal(ctx, op, at, parts)
        bad = [size for size in _sizes_left(ctx, op, at) if not parts.go_into(size, unequal=unequal)]
        if bad and op.stage is Stage.COMPUTE:
            whole.setdefault(bad[0], []).append(op.module)
        elif not bad:
            kept.append((op, at))
    for size, paths in whole.items():
        division = Division(parts.cut.name.text, parts.count, parts.origin)
        place = ctx.stack.site or s.dim.span
        ctx.facts.warnings.append(LeftWhole(place, s.dim.text, size, division, tuple(dict.fromkeys(paths))))
    return kept


def _may_be_unequal(ctx: Context, op: Operator, at: int, parts: Parts) -> bool:
    """Whether windows are on a dimension, and no other index cuts it."""
    others = (i for i in ctx.facts.indices.get(op.name, ()) if i.name != parts.cut.name.text)
    cuts = [i for i in others if i.dim == at and i.count > 1]
    return op.dims[at].cls in ctx.model.graph.windowed and not cuts


def _is_known(
    ctx: Context, s: nodes.Split, operators: list[Operator], place: tuple[Operator, int], parts: Parts
) -> bool:
    """Whether the operator has this very index already; raises PlanError if it has another of that name."""
    (op, at), name = place, parts.cut.name.text
    known = ctx.facts.index(op.name, name)
    if known is None or _beside(ctx, op, at, parts) is not None:
        return False
    if _is_free(ctx, op, at, parts) or known.also == at:
        return True
    now, before = op.dims[at].name, op.dims[known.dim].name
    others = find_dims(ctx, [o for o in operators if ctx.facts.index(o.name, name) is None], s.dim.text)
    without = f"{written(s.operators, POST, 'model')}[{name} = none]" if others else ""
    span = parts.cut.span
    raise PlanError(
        Contradiction(span, op.module, name, now, parts.count, before, known.count, without, first=known.span)
    )


def _cannot_split(
    ctx: Context, s: nodes.Split, operators: list[Operator], fixed: list[tuple[Operator, Dim]]
) -> CannotSplit:
    op, dim = fixed[0]
    kinds = dict.fromkeys(other.kind for other, _ in fixed)
    has_more = find_dims(ctx, [other for other in operators if other.kind not in kinds], s.dim.text)
    change = (
        " - ".join((written(s.operators, SUM, "OPERATORS"), *(f"model.{kind}" for kind in kinds))) if has_more else ""
    )
    return CannotSplit(s.dim.span, op.kind, s.dim.text, dim.fixed, op.name, op.module, op.source, len(fixed), change)


def written(e: nodes.Expr, least: int, otherwise: str) -> str:
    """An expression as the plan wrote it, if that is short enough to be repeated; `least` is as of `spell`."""
    text = spell(e, least)
    return text if len(text) <= LONGEST else otherwise


def _check_sizes(ctx: Context, s: nodes.Split, found: Places, parts: Parts) -> None:
    """Raises PlanError if some of these dimensions cannot be cut into these parts, after the cuts that they have."""
    bad: dict[int, Places] = {}
    for op, at in found:
        for size in _sizes_left(ctx, op, at):
            if not parts.go_into(size, unequal=_may_be_unequal(ctx, op, at, parts)):
                bad.setdefault(size, []).append((op, at))
    if not bad:
        return
    left, where = next(iter(bad.items()))
    op, at = where[0]
    paths = tuple(dict.fromkeys(op.module for op, _ in where))
    name, index = s.dim.text, parts.cut.name.text
    if parts.total is not None:
        raise PlanError(BadSizes(parts.cut.span, index, parts.total, name, left, paths))
    cuts = [i for i in ctx.facts.indices.get(op.name, ()) if i.dim == at and i.count > 1]
    taken = tuple(Division(i.name, i.count, ctx.facts.cut_origins.get(i.span)) for i in cuts)
    taken = () if any(i.at for i in cuts) else taken
    division = Division(index, parts.pieces, parts.origin)
    raise PlanError(DoesNotDivide(s.dim.span, name, division, taken, op.dims[at].size, left, paths))


def _sizes_left(ctx: Context, op: Operator, at: int, before: str = "") -> list[int]:
    """The different sizes of the parts of a dimension, as it is cut so far, or `before` an index: 768 into 3 and 2
    leaves 128."""
    sizes = [op.dims[at].size]
    for index in itertools.takewhile(lambda i: i.name != before, ctx.facts.indices.get(op.name, ())):
        if index.dim == at:
            sizes = list(dict.fromkeys(index.sizes or [size // index.count for size in sizes]))
    return sizes
