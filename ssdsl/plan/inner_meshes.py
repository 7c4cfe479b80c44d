"""Brings meshes that are slices of other meshes back to these, so that nothing after it knows of them.

    mesh gpus(pp = 2, dp = 2, tp = 2)             mesh gpus(pp = 2, dp = 2, tp = 2)
    mesh row(x = 4) on gpus[pp = 1]
    split model.decoder by batch into x           split ... by batch into dp, tp
    assign model.decoder to row                   assign ... to gpus[pp = 1]

An axis of the inner mesh is one or several axes of the outer one, and these are divided where the inner mesh has other
boundaries: `row(x = 2, y = 3)` on an axis of 6 devices makes it two axes of 2 and 3. So two meshes share devices in the
one form that the compiler knows: as slices of one mesh.
"""

import itertools
from collections.abc import Iterator

from ssdsl.lang.suggest import joined
from ssdsl.model.graph import Origin
from ssdsl.plan.divide_axes import AxisPlace, Divided, changed_records, named_anew, renamed_of_state
from ssdsl.plan.plan import DividedAxis, InnerDevices, Keep, Mesh, Placement, Plan, StateShard
from ssdsl.plan.statements.placement import BadMesh, Flaw
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError

Piece = tuple[str, int, int]  # an axis, and the strides between which some of its digits lie: [inner, outer)


def on_outer_meshes(plan: Plan) -> Plan:
    """The plan in which each mesh has devices of its own. Raises PlanError where axes cannot be divided so."""
    while (inner := next((mesh for mesh in reversed(plan.meshes) if mesh.inside is not None), None)) is not None:
        plan = _brought_back(plan, inner)
    return plan


def _brought_back(plan: Plan, inner: Mesh) -> Plan:
    inside = inner.inside
    assert inside is not None
    outer = next(mesh for mesh in plan.meshes if mesh.name == inside.mesh)
    pieces = [*_pieces(outer, inside)]
    cuts, runs = _cuts(plan, outer, inner, pieces)
    taken = {axis for mesh in plan.meshes for axis, _ in mesh.axes}
    taken |= {index.name for record in plan.operators.values() for index in record.indices}
    axes = {axis: named_anew(AxisPlace(outer.name, axis), size, cuts[axis], taken) for axis, size in outer.axes}
    divided = {AxisPlace(outer.name, axis): found for axis, found in axes.items()}
    mapped = {AxisPlace(inner.name, axis): _of_inner(inner, axis, runs[axis], axes) for axis, _ in inner.axes}
    changed = divided | mapped
    _check_names(plan, inner, outer)
    new = replace(outer, axes=tuple(one for found in axes.values() for one in found.axes))
    fixed = dict(_fixed(inside, axes))

    def place(known: Placement) -> Placement:
        if known.mesh != inner.name:
            return known
        at = fixed | dict(known.fixed)
        return replace(known, mesh=outer.name, fixed=tuple((axis, at[axis]) for axis, _ in new.axes if axis in at))

    records = changed_records(plan, changed, place)
    others = (mesh for mesh in plan.meshes if mesh is not inner)
    meshes = tuple(new if mesh is outer else _on_new_axes(plan, mesh, outer, axes) for mesh in others)
    state = plan.state.on_axes(lambda said: _on_meshes(plan, said, inner, changed))
    kept = tuple(replace(found, by=inner.name) for found in axes.values() if len(found.axes) > 1)
    return replace(plan, meshes=meshes, operators=records, divided=(*plan.divided, *kept), state=state)


def _pieces(outer: Mesh, inside: InnerDevices) -> Iterator[Piece]:
    """The digits of the outer mesh's axes that the devices of the slice have all values of, the outermost first."""
    fixed = dict(inside.fixed)
    if inside.run is not None:
        axis, _, step, count = inside.run
        yield axis, step, step * count
    taken = fixed.keys() | ({inside.run[0]} if inside.run is not None else set())
    yield from ((axis, 1, size) for axis, size in outer.axes if axis not in taken)


def _cuts(
    plan: Plan, outer: Mesh, inner: Mesh, pieces: list[Piece]
) -> tuple[dict[str, set[int]], dict[str, list[Piece]]]:
    """Where the axes of the outer mesh are divided, and the pieces of each axis of the inner one, outermost first."""
    cuts: dict[str, set[int]] = {axis: set() for axis, _ in outer.axes}
    runs: dict[str, list[Piece]] = {}
    for axis, low, high in pieces:
        cuts[axis] |= {low, high}
    left = [*pieces]
    for name, size in inner.axes:
        own = runs[name] = []
        while size > 1:
            axis, low, high = left.pop(0)
            count = high // low
            if size % count and count % size:
                raise PlanError(_no_division(plan, inner, axis))
            used = min(count, size)
            own.append((axis, high // used, high))
            cuts[axis].add(high // used)
            if used < count:
                left.insert(0, (axis, low, high // used))
            size //= used
    for axis, found in cuts.items():
        if any(high % low for low, high in itertools.pairwise(sorted({1, dict(outer.axes)[axis], *found}))):
            raise PlanError(_no_division(plan, inner, axis))
    return cuts, runs


def _no_division(plan: Plan, inner: Mesh, axis: str) -> BadMesh:
    """The mistake in the names of the plan: those of the meshes that have divided an axis before, and its own."""
    names = [inner.name]
    while (divided := next((d for d in plan.divided if axis in dict(d.axes)), None)) is not None:
        names += [divided.by] if divided.by else []
        axis = divided.name
    return BadMesh(inner.span, Flaw.NO_DIVISION, joined([f"`{name}`" for name in (*names, axis)], "and"))


def _of_inner(inner: Mesh, axis: str, own: list[Piece], axes: dict[str, DividedAxis]) -> DividedAxis:
    """An axis of the inner mesh as axes of the outer one."""
    found = (one for name, low, high in own for one in axes[name].between(low, high))
    return DividedAxis(inner.name, axis, tuple(found))


def _fixed(inside: InnerDevices, axes: dict[str, DividedAxis]) -> Iterator[tuple[str, int]]:
    """The coordinates that all devices of the slice have."""
    fixed = dict(inside.fixed)
    if inside.run is not None:
        axis, start, step, count = inside.run
        own = dict(axes[axis].between(step, step * count))
        yield from ((name, at) for name, at in axes[axis].coordinates(start) if name not in own)
    for axis, at in fixed.items():
        yield from axes[axis].coordinates(at)


def _on_new_axes(plan: Plan, mesh: Mesh, outer: Mesh, axes: dict[str, DividedAxis]) -> Mesh:
    """Another mesh on a slice of the outer one, by the axes into which those of the outer one have been divided. Raises
    PlanError for one on a run of devices along such an axis."""
    inside = mesh.inside
    if inside is None or inside.mesh != outer.name:
        return mesh
    if inside.run is not None and len(axes[inside.run[0]].axes) > 1:
        raise PlanError(_no_division(plan, mesh, inside.run[0]))
    fixed = tuple(one for axis, at in inside.fixed for one in axes[axis].coordinates(at))
    return replace(mesh, inside=replace(inside, fixed=fixed))


def _check_names(plan: Plan, inner: Mesh, outer: Mesh) -> None:
    """Raises PlanError for an index in time on the inner mesh with the name of an axis of the outer one."""
    own, others = {axis for axis, _ in inner.axes}, {axis for axis, _ in outer.axes}
    for record in plan.operators.values():
        if record.place is not None and record.place.mesh == inner.name:
            for index in (i for i in record.indices if i.name in others - own):
                raise PlanError(BadMesh(index.span, Flaw.NAMED_AS, index.name))


def _on_meshes(
    plan: Plan, said: StateShard | Keep, inner: Mesh, changed: Divided
) -> Iterator[tuple[frozenset[str], tuple[str, ...]]]:
    """The state of weights that are read on the inner mesh, over its axes; and that of others over those of theirs."""
    here = frozenset(
        operand.value
        for name, record in plan.operators.items()
        if record.place is not None and record.place.mesh == inner.name
        for operand in plan.graph.by_name[name].inputs
        if plan.graph.values[operand.value].origin is Origin.WEIGHT
    )
    others = tuple(mesh for mesh in plan.meshes if mesh is not inner)
    for weights, meshes in ((said.weights & here, (inner,)), (said.weights - here, others)):
        axes = renamed_of_state(said, meshes, changed) if weights else ()
        if weights and (axes or not said.axes):
            yield weights, axes
