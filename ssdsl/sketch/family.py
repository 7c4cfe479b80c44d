"""Names the kinds of parallelism that a plan uses, in the words of the field."""

from collections.abc import Collection, Iterable, Iterator

from ssdsl.identity import places_of
from ssdsl.plan.plan import OpPlan, Plan

KIND_OF_DIMENSION = {"batch": "data", "seq": "sequence", "experts": "expert"}
KINDS = ("data", "tensor", "sequence", "expert", "pipeline")


def family(plan: Plan) -> str:
    """The kinds of parallelism of a plan, as `data + tensor + pipeline, ZeRO-1`: by the dimensions that the axes of its
    meshes cut; a plan with several meshes is a pipeline too. If the axes cut nothing, `one device`, or `repeated work`
    of several devices."""
    placed = [(name, record) for name, record in plan.operators.items() if record.place is not None]
    first = [placed[first] for _, (first, *_) in places_of(record for _, record in placed)]
    cuts = _cuts(plan, first)
    kinds = {kind for mesh, axis in _axes(plan) if (kind := _kind(cuts.get((mesh, axis), ())))}
    if len({record.home.mesh for _, record in first}) > 1:
        kinds.add("pipeline")
    words = " + ".join(kind for kind in KINDS if kind in kinds)
    words = words or ("one device" if plan.devices == 1 else "repeated work")
    sharded = max((s.state.stage for s in plan.state.shards if _wide(plan, s.axes)), default=0)
    return f"{words}, ZeRO-{sharded}" if sharded else words


def _axes(plan: Plan) -> Iterator[tuple[str, str]]:
    for mesh in plan.meshes:
        yield from ((mesh.name, axis) for axis, size in mesh.axes if size > 1)


def _wide(plan: Plan, axes: tuple[str, ...]) -> bool:
    return any(name in axes and size > 1 for mesh in plan.meshes for name, size in mesh.axes)


def _cuts(plan: Plan, records: Iterable[tuple[str, OpPlan]]) -> dict[tuple[str, str], set[str]]:
    """By mesh and axis, the kinds of parallelism of what the records cut and place along it."""
    found: dict[tuple[str, str], set[str]] = {}
    for name, record in records:
        mesh = record.home.mesh
        for axis, _ in record.home.fixed:
            found.setdefault((mesh, axis), set()).add("pipeline")
        for index in record.indices:
            dim = plan.graph.by_name[name].dims[index.dim]
            found.setdefault((mesh, index.name), set()).add(KIND_OF_DIMENSION.get(dim.name, "tensor"))
    return found


def _kind(kinds: Collection[str]) -> str:
    """The kind of parallelism of one axis. An axis that cuts the batch is data parallel, whatever else it cuts."""
    return next((k for k in ("data", "pipeline", "tensor", "expert", "sequence") if k in kinds), "")
