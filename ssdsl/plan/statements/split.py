"""`split`: adds indices to operators. Statements about state are passed to `shard`."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from math import lcm, prod

from ssdsl.identity import ByIdentity, distinct, places_of
from ssdsl.lang import nodes
from ssdsl.lang.formatter.spell import BINDING, POST, spell
from ssdsl.model.graph import ROOT, Dim, Operator, Origin, Stage
from ssdsl.plan.context import Context
from ssdsl.plan.errors.parts import BadSizes
from ssdsl.plan.errors.split import (
    CannotSplit,
    Contradiction,
    Division,
    DoesNotDivide,
    InnerDims,
    NoSuchCondition,
    NoSuchDimension,
    Other,
    alike,
)
from ssdsl.plan.eval.expressions import evaluate
from ssdsl.plan.eval.select import whole_operators
from ssdsl.plan.facts import SplitIndex, Uncut
from ssdsl.plan.model_index import DimPlaces, Places
from ssdsl.plan.paths import match_names, starred, starred_module
from ssdsl.plan.plan import Index
from ssdsl.plan.regions import Digit
from ssdsl.plan.statements.inner_dims import (
    counts_statistics,
    in_digits,
    inside_of,
    of_inner_alone,
    sizes_left,
    taken_apart_by,
)
from ssdsl.plan.statements.parts import Cutting, SplitParts, cuttings
from ssdsl.plan.statements.shard import shard
from ssdsl.plan.values import Selection, StateOf
from ssdsl.record import Record, replace
from ssdsl.text.diagnostic import Diagnostic, PlanError

SUM = BINDING["-"]
TOKENS = "tokens"  # of a mixture of experts: the rows that a device has, if no dimension of the model has this name
LONGEST = 60  # of an expression that a help repeats


def split(ctx: Context, s: nodes.SplitStatement) -> None:
    """Adds the indices of one statement, the first outermost; raises PlanError."""
    try:
        if ctx.facts.aliases.get(s.dim.text) == frozenset():  # its `dim` has failed
            raise PlanError()
        if s.where is not None and s.where.text != "possible":
            raise PlanError(NoSuchCondition(s.where.span, s.where.text))
        value = evaluate(ctx, s.operators)
        if isinstance(value, StateOf):
            shard(ctx, s, value)
            return
        part = value.fixed if isinstance(value, Selection) else ()  # each may be cut in its own way
        operators = whole_operators(ctx, value, s.operators, "split", what=part)
        if not operators:
            return
        for cutting in _cuttings(ctx, s, operators):
            having = [one for one in cutting if find_dims(ctx, ctx.model.varying(one[0]), s.dim.text).places]
            if len(having) > 1:  # some may have nothing to compute along the dimension
                having = [one for one in having if _computes(ctx, one[0], s.dim.text)]
            for those, parts in having or cutting[:1]:
                _add_index(ctx, s, those, parts)
    except PlanError:
        ctx.facts.broken.update(cut.name.text for cut in s.cuts)
        raise


def _computes(ctx: Context, operators: frozenset[str], dim: str) -> bool:
    """Whether a plan places an operator of these that has a dimension of this name."""
    return any(op.stage is Stage.COMPUTE for op, _ in find_dims(ctx, ctx.model.varying(operators), dim).places)


def _cuttings(ctx: Context, s: nodes.SplitStatement, operators: frozenset[str]) -> Iterator[list[Cutting]]:
    """The parts of each index. Raises PlanError, with a mistake in the dimension's name reported first."""
    for cut in s.cuts:
        try:
            yield cuttings(ctx, cut, operators)
        except PlanError as error:
            given = ctx.model.varying(operators)
            if s.where is None and not find_dims(ctx, given, s.dim.text).places and not _is_one(ctx, s.dim.text):
                raise PlanError(no_such_dimension(ctx, s.dim, given), *error.diagnostics) from error
            raise


def _add_index(ctx: Context, s: nodes.SplitStatement, operators: frozenset[str], parts: SplitParts) -> None:
    """Adds one index to all operators that have the dimension. Operators that need all of it stay whole along it, as
    long as the statement names others, too."""
    given = ctx.model.varying(operators)
    found = find_dims(ctx, given, s.dim.text)
    if not found.places and s.where is None:
        if not _is_one(ctx, s.dim.text):
            raise PlanError(no_such_dimension(ctx, s.dim, given))
        found = _of_one(ctx, s, given, parts)
    alike = _alike(ctx, found)
    placed = [one for one in alike if one.like.stage is Stage.COMPUTE]
    if alike and not placed and ctx.model.only_compute(given) and parts.count > 1 and s.where is None:
        raise PlanError(no_such_dimension(ctx, s.dim, given))  # it would cut no work
    if placed and all(one.dim.fixed for one in placed) and parts.count > 1 and s.where is None:
        fixed = [(op, op.dims[at]) for op, at in found.places if op.stage is Stage.COMPUTE]
        raise PlanError(_cannot_split(ctx, s, operators, fixed))
    if s.where:
        alike = [one for one in alike if _is_free(ctx, one.like, one.at, parts)]
    new = [one for one in alike if not one.dim.fixed and not _is_known(ctx, s, operators, (one.like, one.at), parts)]
    if parts.count > 1 and new:
        new = _dividing(ctx, s, new, parts)
        if not new and not placed and s.where is None:
            raise PlanError(no_such_dimension(ctx, s.dim, given))
    if parts.origin is not None:
        ctx.facts.cut_origins[parts.cut.span] = parts.origin
    for one in new:
        if (beside := _beside(ctx, one.like, one.at, parts)) is not None:
            ctx.facts.set_index(one.numbers, beside)
    tokens = _are_tokens(ctx, s.dim.text)
    inside: dict[int, Index] = {}
    for one, indices in [(one, _indices(ctx, one, parts)) for one in new if not _has(ctx, one, parts)]:
        inside |= {one.like.dims[index.dim].cls: index for index in indices[1:]}
        for index in indices:
            ctx.facts.add_index(one.numbers, replace(index, within=tokens))
    having = frozenset(number for _, numbers in found.groups for number in numbers)
    for number, index in [*of_inner_alone(ctx, given, inside, having)]:
        ctx.facts.add_index([number], index)
    if parts.count > 1 and s.where is None and s.dim.text not in ctx.facts.aliases:
        ctx.facts.cuts.append(SplitIndex(s.dim, parts.cut.name.text, ctx.model.only_compute(given), found.classes))
    for one in alike:
        if one.dim.fixed and one.like.stage is Stage.COMPUTE and parts.count > 1:
            ctx.facts.leave_whole(one.numbers, _index(ctx, one.like, one.at, parts))


class _Alike(Record):
    """Operators that are alike (`ModelIndex.calls`) and have the same record, with the number of a dimension: what
    holds for the first holds for all."""

    numbers: Sequence[int]  # in the graph
    at: int
    like: Operator

    @property
    def dim(self) -> Dim:
        return self.like.dims[self.at]


def _alike(ctx: Context, found: DimPlaces) -> list[_Alike]:
    """The groups of alike operators with a dimension, in the order of the first of each."""
    records, operators = ctx.facts.operators.at, ctx.model.graph.operators
    alike: list[_Alike] = []
    for at, numbers in found.groups:
        for _, places in places_of(map(records.__getitem__, numbers)):
            those = [numbers[place] for place in places]
            alike.append(_Alike(those, at, operators[those[0]]))
    return sorted(alike, key=lambda one: one.numbers[0])


def _beside(ctx: Context, op: Operator, at: int, parts: SplitParts) -> Index | None:
    """The index for both dimensions, if the operator's index of this name cuts the queries and this one cuts the keys
    alike, or the other way round; else None."""
    known = ctx.facts.index(op.name, parts.cut.name.text)
    if known is None or known.also is not None or not _is_cut_so(ctx, op, at, parts, known):
        return None
    if op.dims[at].beside == known.dim:
        return replace(known, also=at)
    return replace(known, dim=at, also=known.dim) if op.dims[known.dim].beside == at else None


def _is_cut_so(ctx: Context, op: Operator, at: int, parts: SplitParts, known: Index) -> bool:
    """Whether an existing index makes the same parts of a dimension."""
    return (known.devices, known.digit.at) == (parts.count, _index(ctx, op, at, parts).digit.at)


def _is_one(ctx: Context, name: str) -> bool:
    """Whether an input has an axis of this name with one position: then no operator has a dimension of the name."""
    graph = ctx.model.graph
    named = (
        pair for value, names in graph.axes.items() for pair in zip(names, graph.values[value].shape, strict=False)
    )
    return (name, 1) in named


def _of_one(ctx: Context, s: nodes.SplitStatement, operators: frozenset[str], parts: SplitParts) -> DimPlaces:
    """The place of an index of one part along a dimension of one position: any dimension, as it cuts nothing. Raises
    PlanError for more parts."""
    if parts.count > 1:
        division = Division(parts.cut.name.text, parts.count, parts.origin)
        raise PlanError(DoesNotDivide(s.dim.span, s.dim.text, division, (), 1, 1, (ROOT,), has_others=False))
    first = ((op, 0) for op in ctx.model.ordered(operators) if op.dims and not op.dims[0].fixed)
    return ctx.model.dim_places(list(first))


def _index(ctx: Context, op: Operator, at: int, parts: SplitParts) -> Index:
    """The index along a dimension, given how the dimension is cut so far."""
    name, span = parts.cut.name.text, parts.cut.span
    left = sizes_left(ctx.facts, op, at, before=name)
    is_cut = len(left) == 1 and parts.go_into(left[0], unequal=_may_be_unequal(ctx, op, at, parts))
    return Index(name, at, parts.digit(left[0]) if is_cut else Digit(parts.count), span)


def _has(ctx: Context, one: _Alike, parts: SplitParts) -> bool:
    return ctx.facts.index(one.like.name, parts.cut.name.text) is not None


def _indices(ctx: Context, one: _Alike, parts: SplitParts) -> tuple[Index, ...]:
    """The index along a dimension; for parts that only the dimensions inside of it make possible, one for each."""
    if _leaves(ctx, one, parts):
        return in_digits(ctx, one.like, one.at, parts)
    return (_index(ctx, one.like, one.at, parts),)


def _leaves(ctx: Context, one: _Alike, parts: SplitParts) -> list[int]:
    """The sizes of the dimension, as it is cut so far, that these parts do not divide."""
    unequal = _may_be_unequal(ctx, one.like, one.at, parts)
    return [n for n in sizes_left(ctx.facts, one.like, one.at) if not parts.go_into(n, unequal=unequal)]


def find_dims(ctx: Context, operators: frozenset[str], name: str) -> DimPlaces:
    """The operators that have a dimension of this name, with its number. If an operator has `seq.0` and `seq.1`, `seq`
    is the first.

    A name may have stars, as `show dims` prints it, and may begin at any segment: `h.*.mixer.A_log.1`. The name of a
    weight's axis means the dimension of that axis, the outermost if there are several, also if that has a better name.
    A dimension's full name means that dimension only.
    """
    key = operators, name, ctx.facts.aliases.get(name)
    if (known := ctx.model.places.get(key)) is None:
        known = ctx.model.places[key] = ctx.model.dim_places(_find_dims(ctx, operators, name))
    return known


def _find_dims(ctx: Context, operators: frozenset[str], name: str) -> Places:
    numbers, dims = ctx.model.numbers(operators), ctx.model.dims
    alike = distinct(map(dims.__getitem__, numbers))
    named = {*itertools.chain.from_iterable(alike)}
    own = match_names({own for own, _ in named}, name, anywhere=True)
    names = ctx.model.graph.dim_names
    plain = match_names({names.get(cls, own) for own, cls in named}, name, anywhere=True)
    classes = ctx.facts.aliases.get(name) or (frozenset() if name in own | plain else _otherwise(ctx, name))
    ways = (
        {key for key in named if key[0] in own},
        {key for key in named if names.get(key[1], key[0]) in plain},
        {key for key in named if key[1] in classes},
    )
    rank = {key: n for n, way in reversed([*enumerate(ways)]) for key in way}  # the first way counts
    first = ByIdentity(
        (keys, min((rank[key], at) for at, key in enumerate(keys) if key in rank)[1])
        for keys in alike
        if not rank.keys().isdisjoint(keys)
    )
    having = ((ctx.model.graph.operators[n], first[dims[n]]) for n in numbers if dims[n] in first)
    return [(op, _cut_dim(op, at)) for op, at in having]


def _cut_dim(op: Operator, at: int) -> int:
    """The dimension that is cut for one that is named: what is windowed is cut as the results need it; keys may be cut
    by themselves."""
    dim = op.dims[at]
    return at if dim.window is None or dim.beside is not None else dim.window.of


def base_name(ctx: Context, dim: Dim) -> str:
    """The name of a dimension without the number that distinguishes `seq.0` and `seq.1` of one operator."""
    return ctx.model.graph.dim_names.get(dim.cls, dim.name)


def no_such_dimension(ctx: Context, name: nodes.Word, operators: frozenset[str]) -> NoSuchDimension:
    """The mistake of a name that no operator has, with the names that they have, the most frequent first."""
    dims = (dim for op in ctx.model.ordered(operators) if op.stage is Stage.COMPUTE for dim in op.dims)
    own = tuple(dim for dim in dims if dim.size > 1 and (dim.window is None or dim.beside is not None))
    times = Counter(starred(base_name(ctx, dim)) for dim in own)
    known = tuple(word for word, _ in times.most_common())
    theirs, marked = dict.fromkeys(_called(ctx, name.text)), dict.fromkeys(d.name for d in own if d.beside is not None)
    return NoSuchDimension(name.span, name.text, known, tuple(ctx.facts.aliases), tuple(theirs), marked=tuple(marked))


def _called(ctx: Context, name: str) -> Iterator[str]:
    """The names of the dimensions of axes that an input calls `name`: axes of two inputs may share a dimension, which
    then has the first input's name."""
    graph = ctx.model.graph
    for value, names in graph.axes.items():
        factors = graph.values[value].factors if value in graph.values else ()
        for word, classes in zip(names, factors, strict=False):
            if word == name and classes:
                yield graph.dim_names[classes[0]]


def _otherwise(ctx: Context, name: str) -> frozenset[int]:
    """The dimensions that a name means if none has it: those of tokens, or that of a weight's axis, by the axis's name,
    such as `h.*.mlp.c_fc.weight.1`."""
    if _are_tokens(ctx, name):
        return ctx.model.tokens
    weights = ctx.model.graph.of(Origin.WEIGHT) if "." in name else ()
    axes = {f"{w.name}.{at}": axis for w in weights for at, axis in enumerate(w.factors) if axis}
    return frozenset(axes[axis][0] for axis in match_names(axes, name, anywhere=True))


def _are_tokens(ctx: Context, name: str) -> bool:
    """Whether a name means the tokens of a mixture: no dimension or alias has it."""
    graph = ctx.model.graph
    return name == TOKENS and name not in ctx.facts.aliases and name not in graph.dim_names.values()


def _is_free(ctx: Context, op: Operator, at: int, parts: SplitParts) -> bool:
    """Whether the operator has no conflicting index of this name: none along another dimension, or with other parts."""
    known = ctx.facts.index(op.name, parts.cut.name.text)
    return known is None or (known.dim == at and _is_cut_so(ctx, op, at, parts, known))


def _dividing(ctx: Context, s: nodes.SplitStatement, alike: list[_Alike], parts: SplitParts) -> list[_Alike]:
    """The operators whose dimension can be cut into these parts. Of the others, those that no plan places, such as
    computations on indices alone, stay whole, and so do those on a moved axis (padded, sliced or joined, and so of
    another size) where the axis itself can be cut. `where possible` leaves the rest whole, too; otherwise raises
    PlanError."""
    kept: list[_Alike] = []
    bad: dict[int, Places] = {}
    for one in alike:
        left = _leaves(ctx, one, parts)
        if not left or in_digits(ctx, one.like, one.at, parts):
            kept.append(one)
        elif one.like.stage is Stage.COMPUTE:
            bad.setdefault(left[0], []).extend((ctx.model.graph.operators[n], one.at) for n in one.numbers)
    if any(one.like.stage is Stage.COMPUTE for one in kept):
        is_moved = ctx.model.graph.moved.__contains__
        bad = {
            n: found for n, places in bad.items() if (found := [p for p in places if not is_moved(p[0].dims[p[1]].cls)])
        }
    for places in bad.values():
        places.sort(key=lambda place: ctx.model.position[place[0].name])
    if bad and s.where is None:
        raise PlanError(_not_so(ctx, s, parts, bad, any(one.like.stage is Stage.COMPUTE for one in kept)))
    for size, those in bad.items():
        place, names = ctx.stack.site or s.dim.span, tuple(op.name for op, _ in those)
        counts = parts.count, parts.pieces, parts.total
        ctx.facts.uncut.append(Uncut(place, s.dim.text, size, parts.cut.name.text, *counts, parts.origin, names))
    return kept


def _modules(places: Places) -> tuple[str, ...]:
    return tuple(dict.fromkeys(op.module for op, _ in places))


def _may_be_unequal(ctx: Context, op: Operator, at: int, parts: SplitParts) -> bool:
    """Whether parts may be unequal: operators read windows of the dimension; and no other index cuts it, or all that do
    are axes of meshes and this statement lists no chunks."""
    others = (i for i in ctx.facts.of(op.name).indices if i.name != parts.cut.name.text)
    cuts = [i.name for i in others if at in i.dims and i.digit.parts > 1]
    axes = {axis for _, axis, _ in ctx.facts.axes()}
    is_alone = not cuts or (parts.chunks is None and axes.issuperset((*cuts, parts.cut.name.text)))
    return op.dims[at].cls in ctx.model.graph.windowed and is_alone


def _is_known(
    ctx: Context, s: nodes.SplitStatement, operators: frozenset[str], place: tuple[Operator, int], parts: SplitParts
) -> bool:
    """Whether the operator has this index already; raises PlanError if it has a different one of the name."""
    (op, at), name = place, parts.cut.name.text
    known = ctx.facts.index(op.name, name)
    if known is None or _beside(ctx, op, at, parts) is not None:
        return False
    if _is_free(ctx, op, at, parts) or known.also == at:
        return True
    raise PlanError(_contradiction(ctx, s, operators, place, parts, known))


def _contradiction(
    ctx: Context,
    s: nodes.SplitStatement,
    operators: frozenset[str],
    place: tuple[Operator, int],
    parts: SplitParts,
    known: Index,
) -> Contradiction:
    """The mistake of an operator that has a different index of this name."""
    op, at = place
    now, before = op.dims[at], op.dims[known.dim]
    free = [o for o in ctx.model.ordered(operators) if ctx.facts.index(o.name, known.name) is None]
    return Contradiction(
        parts.cut.span,
        op.module,
        known.name,
        now.name,
        now.size,
        parts.count,
        before.name,
        before.size,
        known.devices,
        given=written(s.operators, POST, "model"),
        asked=s.dim.text,
        is_pair=now.beside == known.dim or before.beside == at,
        is_all=not find_dims(ctx, frozenset(o.name for o in free), s.dim.text).places,
        other=_other_dim(ctx, s.dim.text, known.name, free),
        first=known.span,
    )


def _other_dim(ctx: Context, name: str, index: str, free: list[Operator]) -> Other | None:
    """Another dimension that the name may mean: the largest one that can be cut, of an operator with a weight and
    without this index. No operator with that dimension has the index, or needs all of the dimension."""
    graph, words = ctx.model.graph, alike(name)
    taken = {d.cls for o in graph.operators for d in o.dims if d.fixed or ctx.facts.index(o.name, index) is not None}
    weights = {value.name for value in graph.of(Origin.WEIGHT)}
    found = [
        Other(starred_module(op.module), dim.name, dim.size)
        for op in free
        for dim in op.dims
        if dim.name in words and dim.cls not in taken and any(i.value in weights for i in op.inputs)
    ]
    return max(found, key=lambda other: other.size, default=None)


def _cannot_split(
    ctx: Context, s: nodes.SplitStatement, operators: frozenset[str], fixed: list[tuple[Operator, Dim]]
) -> CannotSplit:
    op, dim = fixed[0]
    kinds = dict.fromkeys(other.kind for other, _ in fixed)
    others = frozenset(name for name in operators if ctx.model.operators[name].kind not in kinds)
    has_more = find_dims(ctx, others, s.dim.text).places
    change = (
        " - ".join((written(s.operators, SUM, "OPERATORS"), *(f"model.{kind}" for kind in kinds))) if has_more else ""
    )
    return CannotSplit(s.dim.span, op.kind, s.dim.text, dim.fixed, op.name, op.module, op.source, len(fixed), change)


def written(e: nodes.Expr, least: int, otherwise: str) -> str:
    """The text of an expression, if it is short enough to repeat, else `otherwise`; `least` is that of `spell`."""
    text = spell(e, least)
    return text if len(text) <= LONGEST else otherwise


def _not_so(
    ctx: Context, s: nodes.SplitStatement, parts: SplitParts, bad: dict[int, Places], has_others: bool
) -> Diagnostic:
    """The mistake of dimensions that cannot be cut into these parts, after the cuts that they have; `has_others` if
    some can be cut."""
    left, where = next(iter(bad.items()))
    op, at = where[0]
    name, index = s.dim.text, parts.cut.name.text
    if parts.total is not None:
        return BadSizes(parts.cut.span, index, parts.total, name, left, _modules(where), has_others)
    cuts = [i for i in ctx.facts.of(op.name).indices if i.dim == at and i.digit.parts > 1]
    taken = tuple(Division(i.name, i.digit.parts, ctx.facts.cut_origins.get(i.span)) for i in cuts)
    taken = () if any(i.digit.at for i in cuts) else taken
    is_axis = parts.cut.count is None
    sizes = {size for mesh in ctx.facts.meshes.values() for axis, size in mesh.axes if axis == index}
    along = () if is_axis else tuple(sorted(sizes - {parts.count}))
    division = Division(index, parts.pieces, parts.origin, is_axis, along, in_chunks=parts.pieces != parts.count)
    statistics = _statistics(ctx, op.dims[at], prod(c.count for c in (division, *taken)))
    apart = taken_apart_by(ctx.model.graph, op.dims[at].cls) if inside_of(ctx, op, at) else None
    by = f"`{apart.kind}` ({apart.source})" if apart is not None else ""
    inside = InnerDims(written(s.operators, POST, "model"), tuple(inside_of(ctx, op, at)), by)
    is_counted = statistics is None and not division.in_chunks and op.dims[at].cls not in ctx.model.graph.windowed
    return DoesNotDivide(
        s.dim.span,
        name,
        division,
        taken,
        op.dims[at].size,
        left,
        _modules(where),
        has_others,
        statistics,
        inside if is_counted and inside.dims else None,
    )


def _statistics(ctx: Context, dim: Dim, parts: int) -> int | None:
    """The number of parts with own statistics into which the batch must be divided to be cut so often; 0 if that is
    impossible; None if the dimension does not count such parts.

    A batch norm with own statistics has the parts as a dimension beside the channels, and takes its statistics over the
    rest of the batch.
    """
    if not counts_statistics(ctx.model.graph, dim.cls):
        return None
    inputs = ctx.model.graph.of(Origin.INPUT)
    axes = ((f, n) for v in inputs for f, n in zip(v.factors, v.sizes, strict=True) if dim.cls in f)
    batch = next((prod(sizes) for _, sizes in axes), 0)
    wanted = lcm(dim.size, parts)
    return 0 if batch % wanted else wanted
