"""Lowers a plan to a program: it is rewritten first, then come the passes of `PASSES`, in order; `stages.py` has the
types that they lead from and to, `CHECKS` what holds behind some of them. docs/design.md says what each pass does.

A plan is lowered again if it differs from the last one only in the order of tasks, or in the places of statements.
Formed functions depend on which sets of tasks are ordered, but not on the orders themselves, so functions formed for
one order serve for others. And nothing but spans in a program depends on the places of statements in the text.
"""

from collections.abc import Callable, Hashable
from typing import Any

from ssdsl.cluster.cluster import Cluster
from ssdsl.ir.program import Kernels, Program
from ssdsl.ir.references import check_references
from ssdsl.lower.check_stages import check_formed, check_typed
from ssdsl.lower.conversions.assemble import assemble
from ssdsl.lower.conversions.convert import convert_values, find_needs
from ssdsl.lower.conversions.prologue import form_prologues
from ssdsl.lower.functions.compiled_runs import compiled_runs
from ssdsl.lower.functions.drop_results import drop_results
from ssdsl.lower.functions.form_functions import form_functions, join_readers
from ssdsl.lower.functions.form_sections import form_sections
from ssdsl.lower.functions.gather_again import gather_again
from ssdsl.lower.functions.number_kinds import number_kinds
from ssdsl.lower.functions.overwrite import overwrite
from ssdsl.lower.functions.start_conversions import start_conversions
from ssdsl.lower.operators.partial_sums import propagate_partial, sink_grad_reductions
from ssdsl.lower.operators.place_operators import place_operators
from ssdsl.lower.operators.shard_operators import shard_operators
from ssdsl.lower.operators.type_operators import type_operators
from ssdsl.lower.params.await_updates import await_updates
from ssdsl.lower.params.flatten_params import flatten_params
from ssdsl.lower.params.gather_weights import gather_weights
from ssdsl.lower.params.home_matrices import home_matrices
from ssdsl.lower.params.place_params import place_params
from ssdsl.lower.params.prefetch_weights import prefetch_weights
from ssdsl.lower.stages import Formed, Held, Next, Planned, Scheduled
from ssdsl.lower.tasks.assign_lanes import assign_lanes
from ssdsl.lower.tasks.place_events import place_events
from ssdsl.lower.tasks.schedule_tasks import schedule_tasks
from ssdsl.lower.tasks.start_across_tasks import start_across_tasks
from ssdsl.plan.plan import HALVES, ClockOrder, Plan
from ssdsl.record import Record, replace
from ssdsl.rewrite.rewrite import rewrite

Pass = Callable[[Any], Planned]  # from a stage to the next one, or to the same one with other values
After = Callable[[str, Planned], None]


PASSES: tuple[Pass, ...] = (
    # which part of each operator runs where
    place_operators,
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
    compiled_runs,
    overwrite,
    flatten_params,
    home_matrices,
    gather_weights,
    gather_again,
    drop_results,
    start_conversions,
    number_kinds,
    prefetch_weights,
    await_updates,
    # the order in which each role runs them
    schedule_tasks,
    start_across_tasks,
    assign_lanes,
    place_events,
)


CHECKS: dict[Pass, Callable[[Any], None]] = {type_operators: check_typed, number_kinds: check_formed}
FORMING = PASSES[: PASSES.index(schedule_tasks)]
ASSEMBLING = FORMING[FORMING.index(assemble) :]


def lower(
    plan: Plan,
    cluster: Cluster | None = None,
    after: After | None = None,
    held: Held = Held(),
    trains: bool = True,
    kernels: Kernels = Kernels.EAGER,
) -> Program:
    """The program of a plan, with the communication that is cheapest on a cluster. `after` is called with the name and
    result of each rule of the rewriting, then of each pass. `held` are the parameters of the program that trains these
    weights: this program uses them as they are laid out there. A program that does not train (`trains`) is the forward
    alone. `kernels` says how operators run.

    Raises PlanError: unequal parts cut again, statistics split in time, state that cannot be sharded, an order that is
    a cycle, more devices than the cluster has, a weight on devices on which it is not held.
    """
    return scheduled(formed(Planned(plan, cluster, held, trains, kernels), after), after)


def formed(planned: Planned, after: After | None = None) -> Formed:
    """The functions of a plan that is not rewritten yet, with their communication, before their tasks are ordered."""
    plan, cluster = planned.plan, planned.cluster
    if cluster is not None:
        cluster.check_size(plan.devices, plan.meshes[-1].span)
    of_rule = None if after is None else lambda name, plan: after(name, replace(planned, plan=plan))
    return _run_passes(FORMING, replace(planned, plan=rewrite(plan, of_rule)), Formed, after)


def formed_with(clocks: tuple[ClockOrder, ...], last: Formed) -> Formed:
    """The functions of a plan with other clocks, which name the same sets and perhaps the halves of their backwards.
    What functions need of each other, and what prologues provide, does not depend on these."""
    segmented = form_functions(replace(last, plan=replace(last.plan, clocks=clocks)))
    provided = replace(last, plan=segmented.plan, segments=segmented.segments)
    return _run_passes(ASSEMBLING, provided, Formed, None)


def scheduled(formed: Formed, after: After | None = None) -> Program:
    """The program of formed functions."""
    program = _run_passes(PASSES[len(FORMING) :], formed, Scheduled, after).program()
    check_references(program)
    return program


def _run_passes(passes: tuple[Pass, ...], before: Planned, stage: type[Next], after: After | None) -> Next:
    """The stage that passes lead to."""
    for step in passes:
        before = step(before)
        if step in CHECKS:
            CHECKS[step](before)
        if after is not None:
            after(step.__name__, before)
    assert isinstance(before, stage)
    return before


# -- lowering again ----------------------------------------------------------------------------------------------------


class Lowered(Record):
    """A plan as its text says it, its formed functions, and its program. Two with the same object `like` have programs
    that differ only in the places of statements."""

    plan: Plan
    formed: Formed
    program: Program
    like: object


def lowered_again(last: Lowered, plan: Plan) -> Lowered | None:
    """The plan with its program, if it forms the same functions as the last one; else None. Raises PlanError for an
    order that is a cycle."""
    if last.plan.graph is not plan.graph or not forms_the_same(last.plan, plan):
        return None
    formed = replace(last.formed, plan=_as_formed(last, plan))
    if (last.plan.orders, last.plan.clocks) != (plan.orders, plan.clocks):
        return Lowered(plan, formed, scheduled(formed), object())
    places = dict(zip(last.plan.order_spans(), plan.order_spans(), strict=True))
    stated = {task: tuple(places[span] for span in spans) for task, spans in last.program.stated.items()}
    return Lowered(plan, formed, replace(last.program, plan=formed.plan, stated=stated), last.like)


def forms_the_same(a: Plan, b: Plan) -> bool:
    """Whether two plans for one graph form the same functions: they say the same of operators and state, and order the
    same sets, by the same indices."""
    return (
        (a.meshes, a.state) == (b.meshes, b.state)
        and _ordered(a) == _ordered(b)
        and a.operators.keys() == b.operators.keys()
        and all(one == other for one, other in {(r, b.operators[name]) for name, r in a.operators.items()})
    )


def _ordered(plan: Plan) -> frozenset[Hashable]:
    """The sets of operators that a plan orders, each with the indices that it fixes, and whether in halves of a
    backward."""
    return frozenset((t.number, frozenset(name for name, _ in t.fixed), t.phase in HALVES) for t in plan.ordered())


def _as_formed(last: Lowered, plan: Plan) -> Plan:
    """The plan, rewritten, without the indices that forming took away from operators of the last one."""
    formed = last.formed.plan
    plan = replace(rewrite(plan), graph=formed.graph)  # plans that say the same are rewritten alike
    fewer = {o: r for o, r in formed.operators.items() if len(r.indices) < len(plan.of(o).indices)}
    left = {operator: {i.name for i in record.indices} for operator, record in fewer.items()}
    return plan.cutting({o: tuple(i for i in plan.of(o).indices if i.name in names) for o, names in left.items()})
