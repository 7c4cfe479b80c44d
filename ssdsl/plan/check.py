"""What must hold of the facts together, once all are said: everything is placed, and indices fit the axes they meet."""

from ssdsl.lang.suggest import listed
from ssdsl.model.graph import Operator
from ssdsl.plan.context import Context
from ssdsl.plan.errors.place import NoMesh, NotAssigned, RelatesNothing, SplitAndFixed
from ssdsl.plan.errors.split import CountMismatch, UnequalOnAxis
from ssdsl.plan.eval.units import module_of
from ssdsl.plan.plan import Index, Mesh
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Source


def check(ctx: Context) -> list[Diagnostic]:
    """The mistakes, one for each index and statement."""
    if not ctx.meshes:
        return [NoMesh(None)]
    if missing := [op for op in ctx.ordered(ctx.compute) if op.name not in ctx.placements]:
        return [_not_assigned(ctx, missing)]
    found: dict[object, Diagnostic] = {}
    for op in ctx.ordered(ctx.compute):
        mesh = ctx.meshes[ctx.placements[op.name].mesh]
        axes = dict(mesh.axes)
        for index in (*ctx.indices.get(op.name, ()), *ctx.whole.get(op.name, {}).values()):
            if index.name in axes and (wrong := _meets(ctx, op, index, mesh, axes[index.name])):
                found.setdefault((index.span, type(wrong)), wrong)
    return list(found.values())


def warnings(ctx: Context, source: Source) -> list[Diagnostic]:
    """Orders of the plan itself that relate nothing."""
    return [RelatesNothing(span) for span, count in ctx.related.items() if not count and span.source is source]


def _meets(ctx: Context, op: Operator, index: Index, mesh: Mesh, size: int) -> Diagnostic | None:
    """An index and the axis of its name: not fixed by the placement, of one size, in equal parts."""
    placement = ctx.placements[op.name]
    if index.name in dict(placement.fixed) and size > 1:
        return SplitAndFixed(placement.span, op.path or op.name, index.name, index.span)
    if index.count != size:
        where = f"for instance `{op.path or op.name}`"
        return CountMismatch(index.span, index.name, index.count, mesh.name, size, where, mesh.span)
    if index.sizes is not None:
        return UnequalOnAxis(index.span, index.name, mesh.name)
    return None


def _not_assigned(ctx: Context, missing: list[Operator]) -> NotAssigned:
    paths = [op.path for op in missing if op.path]
    modules = list(dict.fromkeys(module_of(op.path, 1) or op.path or op.name for op in missing))
    where = f"they are in {listed(modules)}" if len(missing) > 1 else f"it is in {listed(modules)}"
    everything = len(missing) == len(ctx.compute)
    example = "model" if everything else f'model["{module_of(paths[0], 1) or paths[0]}"]' if paths else "model"
    return NotAssigned(None, len(missing), where, example, next(iter(ctx.meshes)))
