"""Places the operators: the devices of each, how its own indices cut it, and the values that have a gradient."""

from collections.abc import Hashable

from ssdsl.identity import ByIdentity
from ssdsl.ir.function import Split
from ssdsl.ir.layout import Submesh
from ssdsl.lower.operators.coordinates import operator_splits
from ssdsl.lower.stages import Placed, Planned, grown
from ssdsl.model.graph import Graph
from ssdsl.plan.plan import OpPlan, Plan

Axes = tuple[tuple[str, int], ...]  # of a submesh, with their sizes


def place_operators(lowering: Planned) -> Placed:
    """Adds `submeshes`, `cuts` and `learning`, which is empty where nothing trains."""
    submeshes = _submeshes(lowering.plan)
    learning = lowering.graph.learning if lowering.trains else frozenset[str]()
    cuts = _cuts(lowering.graph, lowering.plan, submeshes)
    return grown(lowering, Placed, submeshes=submeshes, cuts=cuts, learning=learning)


def _submeshes(plan: Plan) -> dict[str, Submesh]:
    """The submesh of each placed operator; equal placements share one object."""
    meshes = {m.name: m for m in plan.meshes}
    shared: dict[tuple[str, tuple[tuple[str, int], ...]], Submesh] = {}
    return {
        o.name: shared.setdefault((p.mesh, p.fixed), Submesh(meshes[p.mesh], p.fixed))
        for o in plan.graph.operators
        if (p := plan.of(o.name).place) is not None
    }


def _cuts(graph: Graph, plan: Plan, submeshes: dict[str, Submesh]) -> dict[str, tuple[Split, ...]]:
    """The splits of each operator by its own indices. Equal calls that are cut alike share one tuple, also on other
    devices."""
    known = ByIdentity[OpPlan, dict[tuple[int, Axes], tuple[Split, ...]]]()  # a shortcut: operators share records
    shared: dict[Hashable, tuple[Split, ...]] = {}
    cuts = dict[str, tuple[Split, ...]]()
    for operator in graph.computing:
        record, submesh = plan.of(operator.name), submeshes[operator.name]
        if (of_record := known.get(record)) is None:
            of_record = known[record] = {}
        if (key := (graph.signatures[operator.name], submesh.axes)) not in of_record:
            alike = *key, record.indices
            if alike not in shared:
                shared[alike] = operator_splits(operator, record.indices, submesh)
            of_record[key] = shared[alike]
        cuts[operator.name] = of_record[key]
    return cuts
