"""The order of a compiled pipeline as the table that PyTorch's schedules take."""

from collections import defaultdict
from collections.abc import Sequence

from ssdsl.exporters.table import ActionKind, PipeAction, PipelineTable, Row
from ssdsl.exporters.table_errors import NotATable
from ssdsl.ir.function import Function
from ssdsl.ir.program import Program, Role
from ssdsl.plan.plan import Phase
from ssdsl.text.diagnostic import PlanError

KINDS = {
    Phase.FORWARD: ActionKind.FORWARD,
    Phase.BACKWARD: ActionKind.BACKWARD,
    Phase.DGRAD: ActionKind.INPUTS,
    Phase.WGRAD: ActionKind.WEIGHTS,
}
ONE_BY_ONE = "split the batch into one index in time, as `m`, and nothing else in time"


def table_of(program: Program) -> PipelineTable:
    """The actions of each device of a pipeline in order. Raises PlanError for a plan that is none of that kind.

    Operators that run once for all micro-batches, such as an embedding of positions, belong to the stage that reads
    them: there they run with each.
    """
    micro = _micro_batches(program)
    stages = _stages(program)
    rows = [_row(role, stages) for role in sorted(program.roles, key=lambda r: r.submesh.first) if role.actions]
    if len(rows) < 2:
        change = "assign stages to different coordinates of an axis"
        raise PlanError(NotATable(None, "all devices run the same stages", change))
    if not all(rows):
        raise PlanError(NotATable(None, "a device has no stage", "give each device of the pipeline a stage"))
    owners = defaultdict[int, set[int]](set)
    for rank, row in enumerate(rows):
        for action in row:
            owners[action.stage].add(rank)
    if shared := next((stage for stage, ranks in owners.items() if len(ranks) > 1), None):
        change = "assign each stage to one coordinate of an axis"
        raise PlanError(NotATable(None, f"several devices of the pipeline run stage {shared}", change))
    assert all(action.micro < micro for row in rows for action in row)
    return PipelineTable(tuple(rows))


def table_csv(table: PipelineTable) -> str:
    """The table as PyTorch's `_load_csv` reads it: a line for each rank."""
    return "".join(",".join(map(str, row)) + "\n" for row in table.rows)


def _micro_batches(program: Program) -> int:
    """The number of micro-batches: the parts of the one index in time; one if there is none."""
    found = dict.fromkeys((index.name, index.parts) for f in program.functions for index in f.time)
    if len(found) > 1:
        names = ", ".join(f"{name} = {parts}" for name, parts in found)
        raise PlanError(NotATable(None, f"it has several indices in time, {names}", ONE_BY_ONE))
    return next((parts for _, parts in found), 1)


def _stages(program: Program) -> dict[int, int]:
    """The stage of each function that runs once for each micro-batch, by the function's number. Stages are numbered
    along the flow of values."""
    timed = {f.number: f for f in program.functions if f.time} or {f.number: f for f in program.functions}
    for function in program.functions:
        late = function.number not in timed and any(given.producer in timed for given in function.inputs)
        if late:
            change = "order a loss that is a sum over samples, or give PyTorch the whole batch"
            raise PlanError(NotATable(None, f"{function.name} waits for all micro-batches", change))
    groups = defaultdict[int, list[Function]](list)
    for function in timed.values():
        groups[function.stage].append(function)
    before = {
        stage: {timed[given.producer].stage for f in own for given in f.inputs if given.producer in timed} - {stage}
        for stage, own in groups.items()
    }
    order = list[int]()
    while len(order) < len(groups):
        ready = [stage for stage in groups if stage not in order and before[stage] <= {*order}]
        if len(ready) != 1:
            names = " and ".join(groups[stage][0].name for stage in ready[:2]) or "stages that read each other"
            change = "a table numbers stages along one chain: assign what runs beside a stage to that stage"
            raise PlanError(NotATable(None, f"its stages are no chain: {names}", change))
        order += ready
    numbers = {stage: number for number, stage in enumerate(order)}
    return {f.number: numbers[f.stage] for f in timed.values()}


def _row(role: Role, stages: dict[int, int]) -> Row:
    """The actions of a device. Of a stage of several functions, a forward is there when the last has run, a backward
    when the first runs."""
    tasks = [task for task in role.computes() if task.function in stages and task.phase in KINDS]
    order = dict[PipeAction, int]()
    for place, task in enumerate(tasks):
        action = PipeAction(stages[task.function], KINDS[task.phase], task.at[0] if task.at else 0)
        if task.phase is Phase.FORWARD or action not in order:
            order[action] = place
    found = sorted(order, key=lambda action: order[action])
    return tuple(half for action in found for half in _with_its_half(action, found))


def _with_its_half(action: PipeAction, all_of_them: Sequence[PipeAction]) -> Row:
    """A half of a backward together with the other one, if the plan has nothing to compute in that: PyTorch counts
    both."""
    inputs, weights = action._replace(kind=ActionKind.INPUTS), action._replace(kind=ActionKind.WEIGHTS)
    if action.kind is ActionKind.INPUTS and weights not in all_of_them:
        return inputs, weights
    if action.kind is ActionKind.WEIGHTS and inputs not in all_of_them:
        return inputs, weights
    return (action,)
