"""`ssdsl check --cluster`: finds the axes of meshes that exchange activations between nodes, and how to avoid it."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator

from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.errors import AxisAcrossNodes
from ssdsl.ir.comm import AllGather, AllReduce, AllToAll, Exchange, ReduceScatter
from ssdsl.ir.program import Program
from ssdsl.plan.plan import Mesh
from ssdsl.record import Record, replace
from ssdsl.runtime.layout.mesh import RankMesh as Ranks
from ssdsl.show.tables.communication import Communication, communications
from ssdsl.show.view import size
from ssdsl.text.diagnostic import Diagnostic

COLLECTIVES = {kind.kind for kind in (AllReduce, AllGather, ReduceScatter, AllToAll, Exchange)}
ACTIVATIONS = ("forward", "backward")
LEAST_BYTES = 1 << 20  # sent by a node in a step: less is no reason to change a plan


class _Along(Record):
    """The collectives of a step along some axes of a mesh, as one device calls them."""

    mesh: Mesh
    axes: tuple[str, ...]
    calls: tuple[Communication, ...]

    def lines(self) -> list[list[int]]:
        """The groups of ranks that exchange with each other, for one submesh: those of the other submeshes look
        alike."""
        return Ranks(self.mesh.name, dict(self.mesh.axes), self.mesh.first).lines(self.axes)

    def sent(self, cluster: Cluster) -> float:
        """The bytes that the busiest node sends to others in a step."""
        nodes = defaultdict[int, float](float)
        for line in self.lines():
            here = Counter(map(cluster.node, line))
            for node, ranks in here.items() if len(here) > 1 else ():
                nodes[node] += sum(_leaves(c.kind, ranks, len(line)) * c.size_bytes for c in self.calls)
        return max(nodes.values(), default=0.0)

    def time_s(self, cluster: Cluster) -> float:
        """The seconds per step for which a device exchanges along the axes: on the slowest line of ranks, with no other
        traffic on the links."""
        return max(
            sum(c.calls * cluster.collective_time(c.kind, c.size_bytes / c.calls, tuple(line)) for c in self.calls)
            for line in self.lines()
        )


def across_nodes(program: Program, cluster: Cluster) -> tuple[Diagnostic, ...]:
    """A warning for each set of axes along which nodes exchange activations. Raises PlanError if the cluster is too
    small."""
    cluster.check_size(program.plan.devices, program.plan.meshes[-1].span)
    found = list(_along(program))
    return tuple(_warning(along, found, cluster) for along in found if math.ceil(along.sent(cluster)) >= LEAST_BYTES)


def _along(program: Program) -> Iterator[_Along]:
    """The collectives on activations by mesh and axes; if several submeshes have some, those of the busiest."""
    calls: dict[tuple[str, tuple[str, ...]], dict[object, list[Communication]]] = {}
    for c in communications(program):
        if c.kind in COLLECTIVES and c.when in ACTIVATIONS:
            calls.setdefault((c.on.mesh.name, c.over), {}).setdefault(c.on, []).append(c)
    meshes = {m.name: m for m in program.plan.meshes}
    for (mesh, axes), submeshes in calls.items():
        most = max(submeshes.values(), key=lambda found: sum(c.size_bytes for c in found))
        yield _Along(meshes[mesh], axes, tuple(most))


def _leaves(kind: str, inside: int, ranks: int) -> float:
    """The number of times that a collective's bytes leave a node which has `inside` of its `ranks`.

    A ring leaves a node once: an all_reduce sends 2 (n - 1) / n of the data over each link, each of its two halves
    (all_gather, reduce_scatter) half of that. In an all_to_all each rank sends an n-th of its data to each other rank.
    """
    match kind:
        case "all_reduce":
            return 2 * (ranks - 1) / ranks
        case "all_to_all":
            return inside * (ranks - inside) / ranks
        case _:
            return (ranks - 1) / ranks


def _warning(along: _Along, all_along: list[_Along], cluster: Cluster) -> AxisAcrossNodes:
    line = next(line for line in along.lines() if len({cluster.node(r) for r in line}) > 1)
    nodes = sorted({cluster.node(rank) for rank in line})
    axes = ", ".join(along.axes)
    where = f"ranks {_some(line)} are on nodes {_some(nodes)}"
    link = cluster.link(tuple(line))
    time_ms, bandwidth = along.time_s(cluster) * 1e3, link.bandwidth / 1e9
    traffic = (
        f"a node sends {size(along.sent(cluster))} a step for it, over links of {bandwidth:g} GB/s for each device: "
        f"{time_ms:.3g} ms, in which the device waits"
    )
    return AxisAcrossNodes(along.mesh.span, axes, cluster.name, where, traffic, _change(along, all_along, cluster))


def _change(along: _Along, all_along: list[_Along], cluster: Cluster) -> str:
    """The advice: another order of the axes, if that keeps the traffic inside nodes; else a smaller axis."""
    mesh = along.mesh
    width = math.prod(n for a, n in mesh.axes if a in along.axes)
    inner = sorted(
        (other for other in all_along if other.mesh == mesh and other.axes != along.axes),
        key=lambda other: other.time_s(cluster),
    )
    for last in (dict.fromkeys((*(a for other in inner for a in other.axes), *along.axes)), dict.fromkeys(along.axes)):
        ordered = [
            *((a, n) for a, n in mesh.axes if a not in last),
            *((a, n) for a in last for b, n in mesh.axes if a == b),
        ]
        moved = replace(along, mesh=replace(mesh, axes=tuple(ordered)))
        if moved.sent(cluster) < LEAST_BYTES:
            text = ", ".join(f"{a} = {n}" for a, n in ordered)
            time_ms = moved.time_s(cluster) * 1e3
            return f"write `mesh {mesh.name}({text})`: the last axes lie inside a node; it then takes {time_ms:.3g} ms"
    per_node = min(group.per_node for group in cluster.groups)
    if width > per_node:
        return f"make {' times '.join(along.axes)} at most {per_node}, the devices of a node; it is {width}"
    return f"begin the mesh at a multiple of {per_node} devices, and let {' times '.join(along.axes)} divide {per_node}"


def _some(numbers: list[int]) -> str:
    """The first few numbers, as text."""
    return ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")
