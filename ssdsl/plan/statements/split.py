"""`split`: the indices of operators. Where it splits state, `shard` takes over."""

from dataclasses import dataclass

from ssdsl.lang import nodes
from ssdsl.model.graph import Dim, Operator, Stage
from ssdsl.plan.context import Context
from ssdsl.plan.errors.split import (
    BadCount,
    BadSizes,
    CannotSplit,
    Contradiction,
    Division,
    DoesNotDivide,
    NoSuchDimension,
    UnknownCount,
)
from ssdsl.plan.errors.values import Wanted, WrongType
from ssdsl.plan.eval.expressions import evaluate
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.eval.select import whole_operators
from ssdsl.plan.eval.values import StateOf, is_list, is_whole
from ssdsl.plan.facts import Origin
from ssdsl.plan.plan import Index
from ssdsl.plan.statements.param import origin_of
from ssdsl.plan.statements.shard import shard
from ssdsl.text.diagnostic import PlanError

Places = list[tuple[Operator, int]]  # operators, each with the number of the dimension that is cut


@dataclass(frozen=True, slots=True)
class Parts:
    """What one `into` says. `total` is the sum of the sizes, if sizes were given; `sizes` only if they differ."""

    cut: nodes.Cut
    count: int
    sizes: tuple[int, ...] | None = None
    total: int | None = None
    origin: Origin | None = None


def split(ctx: Context, scope: Scope, s: nodes.Split) -> None:
    """Add the indices of one statement, the first the outermost; raises PlanError."""
    try:
        value = evaluate(ctx, scope, s.operators)
        if isinstance(value, StateOf):
            shard(ctx, s, value)
            return
        operators = whole_operators(ctx, value, s.operators, "split")
        for cut in s.cuts:
            _add_index(ctx, s, operators, _parts(ctx, scope, cut))
    except PlanError:
        ctx.facts.broken.update(cut.name.text for cut in s.cuts)
        raise


def _parts(ctx: Context, scope: Scope, cut: nodes.Cut) -> Parts:
    """How many parts, or which sizes: as written, or as the mesh axis of that name."""
    if cut.count is None:
        return _parts_of_axis(ctx, cut)
    value = evaluate(ctx, scope, cut.count)
    origin = origin_of(ctx, scope, cut.count)
    if is_list(value) and value:
        sizes = tuple(n for n in value if is_whole(n))
        if len(sizes) == len(value):
            if bad := [n for n in sizes if n < 1]:
                raise PlanError(BadCount(cut.count.span, bad[0]))
            ctx.budget.spend(cut, len(sizes))
            return Parts(cut, len(sizes), None if len(set(sizes)) == 1 else sizes, sum(sizes), origin)
    if not is_whole(value):
        raise PlanError(WrongType(cut.count.span, Wanted.PARTS, value))
    if value < 1:
        raise PlanError(BadCount(cut.count.span, value))
    return Parts(cut, value, origin=origin)


def _parts_of_axis(ctx: Context, cut: nodes.Cut) -> Parts:
    name = cut.name.text
    if name in ctx.facts.broken:
        raise PlanError()
    sizes = {size: mesh for mesh, axis, size in ctx.facts.axes() if axis == name}
    if len(sizes) != 1:
        raise PlanError(UnknownCount(cut.name.span, name, tuple(axis for _, axis, _ in ctx.facts.axes())))
    ((size, mesh),) = sizes.items()
    return Parts(cut, size, origin=ctx.facts.axis_origins.get((mesh.name, name)))


def _add_index(ctx: Context, s: nodes.Split, operators: list[Operator], parts: Parts) -> None:
    """Add one index to all operators that have the dimension. Those that need all of it stay whole along it, as long as
    the statement names others."""
    found = [(op, at) for op in operators if (at := find_dim(ctx, op, s.dim.text)) is not None]
    found = [(op, at) for op, at in found if op.stage is not Stage.CONSTANT]
    if not found:
        known = dict.fromkeys(dim.name for op in operators if op.stage is not Stage.CONSTANT for dim in op.dims)
        raise PlanError(NoSuchDimension(s.dim.span, s.dim.text, tuple(known), tuple(ctx.facts.aliases)))
    placed = [(op, op.dims[at]) for op, at in found if op.stage is Stage.COMPUTE]
    if placed and all(dim.fixed for _, dim in placed) and parts.count > 1:
        raise PlanError(_cannot_split(s, placed))
    new = [(op, at) for op, at in found if not op.dims[at].fixed and not _is_known(ctx, op, at, parts)]
    if parts.count > 1:
        _check_sizes(ctx, s, new, parts)
    if parts.origin is not None:
        ctx.facts.cut_origins[parts.cut.span] = parts.origin
    for op, at in new:
        ctx.facts.add_index(op.name, _index(parts, at))
    for op, at in found:
        if op.dims[at].fixed and op.stage is Stage.COMPUTE and parts.count > 1:
            ctx.facts.leave_whole(op.name, _index(parts, at))


def _index(parts: Parts, dim: int) -> Index:
    return Index(parts.cut.name.text, parts.count, dim, parts.cut.span, parts.sizes)


def find_dim(ctx: Context, op: Operator, name: str) -> int | None:
    """The number of the operator's dimension of this name; of `seq.0` and `seq.1`, `seq` is the first."""
    for wanted in (name, f"{name}.0"):
        for at, dim in enumerate(op.dims):
            if dim.name == wanted:
                return at
    classes = ctx.facts.aliases.get(name, frozenset())
    return next((at for at, dim in enumerate(op.dims) if dim.cls in classes), None)


def _is_known(ctx: Context, op: Operator, at: int, parts: Parts) -> bool:
    """Whether the operator has this very index already; raises PlanError if it has another of that name."""
    name = parts.cut.name.text
    known = ctx.facts.index(op.name, name)
    if known is None:
        return False
    if (known.dim, known.count, known.sizes) == (at, parts.count, parts.sizes):
        return True
    now, before = op.dims[at].name, op.dims[known.dim].name
    operator = op.path or op.name
    raise PlanError(
        Contradiction(parts.cut.span, operator, name, now, parts.count, before, known.count, first=known.span)
    )


def _cannot_split(s: nodes.Split, fixed: list[tuple[Operator, Dim]]) -> CannotSplit:
    op, dim = fixed[0]
    return CannotSplit(s.dim.span, op.kind, dim.name, dim.fixed, op.name, op.path, op.source, len(fixed))


def _check_sizes(ctx: Context, s: nodes.Split, found: Places, parts: Parts) -> None:
    """Raises PlanError if some of these dimensions cannot be cut into these parts, after the cuts that they have."""
    bad: dict[int, Places] = {}
    for op, at in found:
        for size in _sizes_left(ctx, op, at):
            if size % parts.count if parts.total is None else size != parts.total:
                bad.setdefault(size, []).append((op, at))
    if not bad:
        return
    left, where = next(iter(bad.items()))
    op, at = where[0]
    paths = tuple(dict.fromkeys(op.path or op.name for op, _ in where))
    name, index = op.dims[at].name, parts.cut.name.text
    if parts.total is not None:
        raise PlanError(BadSizes(parts.cut.span, index, parts.total, name, left, paths))
    cuts = [i for i in ctx.facts.indices.get(op.name, ()) if i.dim == at and i.count > 1]
    taken = tuple(Division(i.name, i.count, ctx.facts.cut_origins.get(i.span)) for i in cuts)
    taken = () if any(i.sizes for i in cuts) else taken
    division = Division(index, parts.count, parts.origin)
    raise PlanError(DoesNotDivide(s.dim.span, name, division, taken, op.dims[at].size, left, paths))


def _sizes_left(ctx: Context, op: Operator, at: int) -> list[int]:
    """The different sizes of the parts of a dimension, as it is cut so far: 768 into 3 and 2 leaves 128."""
    sizes = [op.dims[at].size]
    for index in ctx.facts.indices.get(op.name, ()):
        if index.dim == at:
            sizes = list(dict.fromkeys(index.sizes or [size // index.count for size in sizes]))
    return sizes
