"""`split`: the indices of operators, and the shards of state."""

from typing import Any

from ssdsl.lang import nodes
from ssdsl.lang.suggest import listed, suggest
from ssdsl.model.graph import Dim, Operator, Stage
from ssdsl.plan.context import Context
from ssdsl.plan.errors.select import NothingSelected
from ssdsl.plan.errors.split import BadCount, CannotSplit, Contradiction, NoSuchDimension, UnknownCount
from ssdsl.plan.errors.values import WrongType
from ssdsl.plan.eval.expressions import evaluate
from ssdsl.plan.eval.origin import origin_of
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.eval.select import require_whole
from ssdsl.plan.eval.values import Selection, StateOf, is_number, kind_of
from ssdsl.plan.plan import Index
from ssdsl.plan.statements.divide import Parts, divide
from ssdsl.plan.statements.shard import shard
from ssdsl.text.diagnostic import PlanError


def split(ctx: Context, scope: Scope, s: nodes.Split) -> None:
    """Add the indices of one statement, the first the outermost."""
    try:
        value = evaluate(ctx, scope, s.operators)
        if isinstance(value, StateOf):
            shard(ctx, s, value)
            return
        operators = whole_operators(ctx, value, s.operators, "split")
        for cut in s.cuts:
            _cut(ctx, s, operators, _parts(ctx, scope, cut))
    except PlanError:
        ctx.broken.update(cut.name.text for cut in s.cuts)
        raise


def whole_operators(ctx: Context, value: Any, e: nodes.Expr, statement: str) -> list[Operator]:
    """The operators of a statement that takes whole ones, in the order of the graph; at least one."""
    if not isinstance(value, Selection):
        raise PlanError(WrongType(e.span, "a selection of operators", kind_of(value), ""))
    require_whole(value, e, f"`{statement}`")
    if not value.operators:
        raise PlanError(NothingSelected(e.span))
    ctx.step(e, 1 + len(value.operators) // 256)
    return ctx.ordered(value.operators)


def _parts(ctx: Context, scope: Scope, cut: nodes.Cut) -> Parts:
    """How many parts, or which sizes: as written, or as the mesh axis of that name."""
    if cut.count is None:
        return _parts_of_axis(ctx, cut)
    value = evaluate(ctx, scope, cut.count)
    origin = origin_of(ctx, scope, cut.count)
    if isinstance(value, tuple | range) and value and all(is_number(n) for n in value):
        if bad := [n for n in value if n < 1]:
            raise PlanError(BadCount(cut.count.span, bad[0]))
        ctx.step(cut, len(value))
        is_even = len(set(value)) == 1
        return Parts(cut, len(value), None if is_even else tuple(value), sum(value), origin)
    if not is_number(value):
        raise PlanError(WrongType(cut.count.span, "a number of parts or a list of sizes", kind_of(value), ""))
    if value < 1:
        raise PlanError(BadCount(cut.count.span, value))
    return Parts(cut, value, None, None, origin)


def _parts_of_axis(ctx: Context, cut: nodes.Cut) -> Parts:
    name = cut.name.text
    if name in ctx.broken:
        raise PlanError()
    sizes = {size: mesh for mesh, axis, size in ctx.axes() if axis == name}
    if len(sizes) != 1:
        reason = "the meshes have axes of different sizes" if sizes else "no mesh above has this axis"
        hint = suggest(name, [axis for _, axis, _ in ctx.axes()])
        raise PlanError(UnknownCount(cut.name.span, name, reason, hint))
    ((size, mesh),) = sizes.items()
    return Parts(cut, size, None, None, ctx.origins.get((mesh.name, name)))


def _cut(ctx: Context, s: nodes.Split, operators: list[Operator], parts: Parts) -> None:
    """Add one index to all operators that have the dimension."""
    found = [(op, at) for op in operators if (at := find_dim(ctx, op, s.dim.text)) is not None]
    found = [(op, at) for op, at in found if op.stage is not Stage.CONSTANT]
    if not found:
        raise PlanError(_no_dimension(ctx, s, operators))
    fixed = [(op, op.dims[at]) for op, at in found if op.dims[at].fixed and op.stage is Stage.COMPUTE]
    if fixed and parts.count > 1:
        raise PlanError(_cannot_split(s, fixed))
    new = [(op, at) for op, at in found if not op.dims[at].fixed and not _is_known(ctx, op, at, parts)]
    if parts.count > 1:
        divide(ctx, s, new, parts)
    for op, at in new:
        name = parts.cut.name.text
        index = Index(name, parts.count, at, parts.cut.span, parts.sizes)
        if parts.count > 1:
            ctx.indices.setdefault(op.name, []).append(index)
        else:
            ctx.whole.setdefault(op.name, {})[name] = index
    ctx.counts.clear()


def find_dim(ctx: Context, op: Operator, name: str) -> int | None:
    """The number of the operator's dimension of this name; of `seq.0` and `seq.1`, `seq` is the first."""
    for wanted in (name, f"{name}.0"):
        for at, dim in enumerate(op.dims):
            if dim.name == wanted:
                return at
    classes = ctx.aliases.get(name, ())
    return next((at for at, dim in enumerate(op.dims) if dim.cls in classes), None)


def _is_known(ctx: Context, op: Operator, at: int, parts: Parts) -> bool:
    """Whether the operator has this very index already; raises PlanError if it has another of that name."""
    name = parts.cut.name.text
    known = ctx.whole.get(op.name, {}).get(name)
    known = known or next((i for i in ctx.indices.get(op.name, ()) if i.name == name), None)
    if known is None:
        return False
    if (known.dim, known.count, known.sizes) == (at, parts.count, parts.sizes):
        return True
    now = f"cuts `{op.dims[at].name}` into {parts.count}"
    before = f"cuts `{op.dims[known.dim].name}` into {known.count}"
    raise PlanError(Contradiction(parts.cut.span, op.path or op.name, name, now, before, known.span))


def _no_dimension(ctx: Context, s: nodes.Split, operators: list[Operator]) -> NoSuchDimension:
    known = dict.fromkeys(dim.name for op in operators if op.stage is not Stage.CONSTANT for dim in op.dims)
    hint = suggest(s.dim.text, [*known, *ctx.aliases])
    return NoSuchDimension(s.dim.span, s.dim.text, hint, f"they have {listed(known, 12)}" if known else "")


def _cannot_split(s: nodes.Split, fixed: list[tuple[Operator, Dim]]) -> CannotSplit:
    op, dim = fixed[0]
    more = f" and {len(fixed) - 1} more operators" if len(fixed) > 1 else ""
    where = f"`{op.name}` in `{op.path}`, {op.source}{more}" if op.path else f"`{op.name}`, {op.source}{more}"
    return CannotSplit(s.dim.span, f"a {op.kind}", dim.name, dim.fixed, where, op.kind)
