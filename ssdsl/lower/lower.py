"""Lowers a plan to a program: `PASSES` are the passes, in order. docs/glossary.md says what each does."""

from collections.abc import Callable
from dataclasses import replace

from ssdsl.cluster.cluster import Cluster
from ssdsl.ir.layout import Submesh
from ssdsl.ir.program import Program
from ssdsl.ir.references import check_references
from ssdsl.lower.conversions.assemble import assemble
from ssdsl.lower.conversions.convert import convert_values
from ssdsl.lower.conversions.needs import find_needs
from ssdsl.lower.conversions.prologue import form_prologues
from ssdsl.lower.functions.form_functions import form_functions
from ssdsl.lower.functions.form_sections import form_sections
from ssdsl.lower.functions.gather_again import gather_again
from ssdsl.lower.functions.join_readers import join_readers
from ssdsl.lower.functions.number_kinds import number_kinds
from ssdsl.lower.lowering import Held, Lowering
from ssdsl.lower.operators.copy_constants import copy_constants
from ssdsl.lower.operators.divide_dims import divide_dims
from ssdsl.lower.operators.find_gradients import find_gradients
from ssdsl.lower.operators.propagate_partial import propagate_partial
from ssdsl.lower.operators.route_rows import route_rows
from ssdsl.lower.operators.shard_operators import shard_operators
from ssdsl.lower.operators.sink_grad_reductions import sink_grad_reductions
from ssdsl.lower.operators.type_operators import type_operators
from ssdsl.lower.params.flatten_params import flatten_params
from ssdsl.lower.params.gather_weights import gather_weights
from ssdsl.lower.params.place_params import place_params
from ssdsl.lower.tasks.assign_lanes import assign_lanes
from ssdsl.lower.tasks.place_events import place_events
from ssdsl.lower.tasks.schedule_tasks import schedule_tasks
from ssdsl.plan.plan import Plan

Pass = Callable[[Lowering], Lowering]
After = Callable[[str, Lowering], None]


def place_operators(lowering: Lowering) -> Lowering:
    """Adds the submesh of each placed operator; equal placements share one object."""
    meshes = {m.name: m for m in lowering.plan.meshes}
    made: dict[tuple[str, tuple[tuple[str, int], ...]], Submesh] = {}
    submeshes = {
        o.name: made.setdefault((p.mesh, p.fixed), Submesh(meshes[p.mesh], p.fixed))
        for o in lowering.graph.operators
        if (p := lowering.plan.of(o.name).place) is not None
    }
    return replace(lowering, submeshes=submeshes)


PASSES: tuple[Pass, ...] = (
    # which part of each operator runs where
    copy_constants,
    route_rows,
    divide_dims,
    place_operators,
    find_gradients,
    propagate_partial,
    shard_operators,
    sink_grad_reductions,
    # operators as functions, with their communication
    join_readers,
    type_operators,
    form_functions,
    place_params,
    find_needs,
    convert_values,
    form_prologues,
    assemble,
    form_sections,
    flatten_params,
    gather_weights,
    gather_again,
    number_kinds,
    # the order in which each role runs them
    schedule_tasks,
    assign_lanes,
    place_events,
)


FORMING = PASSES[: PASSES.index(schedule_tasks)]


def lower(
    plan: Plan,
    cluster: Cluster | None = None,
    after: After | None = None,
    held: Held = Held(),
    trains: bool = True,
) -> Program:
    """The program of a plan, with the communication that is cheapest on a cluster. `after` is called with each pass's
    name and result. `held` are the parameters of the program that trains these weights: this program uses them as
    they are laid out there. A program that does not train (`trains`) is the forward alone.

    Raises PlanError: unequal parts cut again, statistics split in time, state that cannot be sharded, an order that is
    a cycle, more devices than the cluster has, a weight on devices on which it is not held.
    """
    return scheduled(formed(plan, cluster, after, held, trains), after)


def formed(
    plan: Plan, cluster: Cluster | None = None, after: After | None = None, held: Held = Held(), trains: bool = True
) -> Lowering:
    """A plan's functions with their communication, before their tasks are ordered."""
    if cluster is not None:
        cluster.check_size(plan.devices, plan.meshes[-1].span)
    return _run_passes(FORMING, Lowering(plan, cluster, held, trains), after)


def scheduled(lowering: Lowering, after: After | None = None) -> Program:
    """The program of formed functions."""
    program = _run_passes(PASSES[len(FORMING) :], lowering, after).program()
    check_references(program)
    return program


def _run_passes(passes: tuple[Pass, ...], lowering: Lowering, after: After | None) -> Lowering:
    for step in passes:
        lowering = step(lowering)
        if after is not None:
            after(step.__name__, lowering)
    return lowering
