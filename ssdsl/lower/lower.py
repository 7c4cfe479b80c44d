"""Plan -> Schedule, the whole middle of the compiler in reading order."""

from ssdsl.cluster.link import LOOPBACK, Link
from ssdsl.lower.blocks import form_blocks, submeshes_of
from ssdsl.lower.cuts import LINEAR, OperatorCut, operator_cuts
from ssdsl.lower.deadlock import check_deadlock
from ssdsl.lower.defer import defer
from ssdsl.lower.early import post_early
from ssdsl.lower.errors import CombinedInTime, UnevenWithOthers
from ssdsl.lower.layout import PARTIAL, Submesh
from ssdsl.lower.order import apply_orders
from ssdsl.lower.schedule import Schedule
from ssdsl.lower.sequence import sequence
from ssdsl.lower.spread import Carriers, spread
from ssdsl.lower.tasks import TaskGraph, roles_of
from ssdsl.lower.wire import Wiring
from ssdsl.model.graph import Operator, Stage
from ssdsl.plan.plan import Index, Plan
from ssdsl.text.diagnostic import Diagnostic, PlanError


def lower(plan: Plan, link: Link = LOOPBACK) -> Schedule:
    """The schedule of a plan: blocks, communication, tasks in order.

    Raises PlanError: unequal parts cut again, statistics split in time, state that cannot be cut, an
    order that is a circle.
    """
    plan, carriers = spread(plan)
    submeshes = submeshes_of(plan, plan.graph)
    cuts = _cuts(plan, submeshes, carriers)
    runs = form_blocks(plan, submeshes, cuts)
    wiring = Wiring(plan, runs, cuts, defer(plan, submeshes, cuts), link)
    blocks = wiring.blocks()
    tasks = TaskGraph(plan, blocks, tuple(wiring.transfers.values()), roles_of(plan, submeshes.values()))
    apply_orders(tasks)
    roles, transfers = sequence(tasks), tasks.transfers
    check_deadlock(roles, blocks, transfers)
    roles = post_early(roles, blocks, transfers)
    loss = next(b for b in blocks if any(o.value == plan.graph.loss for o in b.outputs))
    places = wiring.made[plan.graph.loss].layout.value.places
    axes = tuple(a for (a, _), p in zip(loss.submesh.axes, places, strict=True) if p is PARTIAL)
    stated = {task: tuple(spans) for task, spans in tasks.stated.items()}
    return Schedule(
        plan, blocks, wiring.preparation.prepared(), transfers, wiring.homes.homes(), roles, cuts, axes, stated
    )


def _cuts(plan: Plan, submeshes: dict[str, Submesh], carriers: Carriers) -> dict[str, tuple[OperatorCut, ...]]:
    """The cuts of every placed operator, after checking that each index fits the mesh and may be cut where it is."""
    cuts: dict[str, tuple[OperatorCut, ...]] = {}
    wrong: dict[tuple[str, str], Diagnostic] = {}
    for operator in plan.graph.operators:
        if operator.stage is not Stage.COMPUTE:
            continue
        submesh = submeshes[operator.name]
        axes = dict(submesh.axes)
        indices = plan.indices.get(operator.name, ())
        for index in indices:
            if (problem := _problem(operator, index, indices, submesh)) is not None:
                wrong.setdefault((problem.code, index.name), problem)
        cuts[operator.name] = operator_cuts(operator, indices, frozenset(axes), carriers)
    if wrong:
        raise PlanError(*wrong.values())
    return cuts


def _problem(operator: Operator, index: Index, indices: tuple[Index, ...], submesh: Submesh) -> Diagnostic | None:
    if index.dim == LINEAR:
        return None
    path = operator.path or "the model"
    others = [i.name for i in indices if i.dim == index.dim and i.name != index.name]
    if index.sizes is not None and others:
        return UnevenWithOthers(index.span, operator.dims[index.dim].name, index.name, others[0], path)
    in_space = index.name in dict(submesh.axes)
    if not in_space and operator.dims[index.dim].combined:
        name = operator.dims[index.dim].name
        return CombinedInTime(index.span, operator.kind, path, name, index.name, operator.source)
    return None
