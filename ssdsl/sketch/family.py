"""Names the kinds of parallelism that a plan uses, in the words of the field."""

from collections.abc import Iterable, Iterator

from ssdsl.plan.plan import OpPlan, Plan

OF_DIMENSION = {"batch": "data", "seq": "sequence", "experts": "expert"}
KINDS = ("data", "tensor", "sequence", "expert", "pipeline")


def family(plan: Plan) -> str:
    """`data + tensor + pipeline, ZeRO-1`: what the axes of its meshes cut, and a pipeline where it has several meshes;
    `one device` where they cut nothing."""
    kinds = {kind for mesh, axis in _axes(plan) if (kind := _kind(plan, mesh, axis))}
    if len({record.place.mesh for _, record in _distinct(plan) if record.place is not None}) > 1:
        kinds.add("pipeline")
    words = " + ".join(kind for kind in KINDS if kind in kinds) or "one device"
    sharded = max((s.state.stage for s in plan.shards if _wide(plan, s.axes)), default=0)
    return f"{words}, ZeRO-{sharded}" if sharded else words


def _axes(plan: Plan) -> Iterator[tuple[str, str]]:
    for mesh in plan.meshes:
        yield from ((mesh.name, axis) for axis, size in mesh.axes if size > 1)


def _wide(plan: Plan, axes: tuple[str, ...]) -> bool:
    return any(name in axes and size > 1 for mesh in plan.meshes for name, size in mesh.axes)


def _kind(plan: Plan, mesh: str, axis: str) -> str:
    """The kind of parallelism of one axis. An axis that cuts the batch is data parallel, whatever else it cuts."""
    kinds: set[str] = set()
    for name, record in _distinct(plan):
        if record.place is None or record.place.mesh != mesh:
            continue
        if any(axis == fixed for fixed, _ in record.place.fixed):
            kinds.add("pipeline")
        for index in record.indices:
            if index.name == axis:
                dim = plan.graph.by_name[name].dims[index.dim]
                kinds.add(OF_DIMENSION.get(dim.name, "tensor"))
    return next((k for k in ("data", "pipeline", "tensor", "expert", "sequence") if k in kinds), "")


def _distinct(plan: Plan) -> Iterable[tuple[str, OpPlan]]:
    """Each distinct record, with the first operator that has it."""
    first: dict[int, tuple[str, OpPlan]] = {}
    for name, record in plan.operators.items():
        first.setdefault(id(record), (name, record))
    return first.values()
