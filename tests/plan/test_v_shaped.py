"""The V-shaped schedules: their orders are PyTorch's, they never deadlock, and they keep what they promise."""

from collections.abc import Callable, Mapping
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining import schedules

from ssdsl.lang.parse import parse
from ssdsl.model.graph import Dim, Graph, Operand, Operator, Origin, Stage, Value
from ssdsl.model.ops.rows import ROWS
from ssdsl.plan.interpret import interpret_all
from ssdsl.plan.plan import Phase
from ssdsl.solve import vee
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source

ROW = ROWS["aten::linear"]

CORNERS, MOST = (2, 3, 7), 16  # devices
ROWS = 64  # of the batch
PHASES = {Phase.FORWARD: "F", Phase.DGRAD: "B", Phase.WGRAD: "W"}
PYTORCH = {"FORWARD": "F", "BACKWARD_INPUT": "B", "BACKWARD_WEIGHT": "W", "FULL_BACKWARD": "BW"}
PLAN = """\
use pipeline: {name}
mesh gpus(pp = {p})
split model by batch into m = {sizes}
let stage = each("*")
assign stage[s] to gpus[pp = min(s, {stages} - 1 - s)] for s in 0..{stages}
{name}(stage, {m}{numbers})
"""

Task = tuple[str, int, int]  # F, B or W, a stage and a micro-batch
Orders = list[list[Task]]


def model_of(stages: int) -> Graph:
    """An operator with a weight for each stage, made by hand."""
    batch = Dim("batch", ROWS, 0)
    operators, values = [], {}
    for s in range(stages):
        name, weight = f"linear_{s}", f"{s}.weight"
        values[weight] = Value(weight, Origin.WEIGHT, (4,), "float32", True, (), ())
        values[name] = Value(name, Origin.OPERATOR, (4,), "float32", True, (), ())
        inputs = (*(Operand(o.name, ((0,),)) for o in operators[-1:]), Operand(weight, ()))
        output = (Operand(name, ((0,),)),)
        form = name, "linear", "aten::linear", f"{s}", "", Stage.COMPUTE, (), ()
        operators.append(Operator(*form, inputs, output, (batch,), ROW, 1))
    return Graph("chain", tuple(operators), values, operators[-1].name, {0: "batch"}, {})


@pytest.fixture(scope="module")
def orders() -> Callable[[str, int, int], Orders]:
    """What each device runs, by the clock of a schedule."""
    graphs: dict[int, Graph] = {}

    def ordered(name: str, p: int, m: int, numbers: str = "") -> Orders:
        graph = graphs.setdefault(p, model_of(2 * p))
        text = PLAN.format(name=name, p=p, stages=2 * p, sizes=[1] * (m - 1) + [ROWS - m + 1], m=m, numbers=numbers)
        plan = interpret_all(parse(Source("v.ssp", text)), graph)[0]
        (clock,) = plan.clocks
        stages = {o.name: s for s, o in enumerate(graph.operators)}
        found: Orders = [[] for _ in range(p)]
        for row in clock.rows:
            (operator,) = (name for name, record in plan.operators.items() if row.tasks.number in record.sets)
            s = stages[operator]
            found[min(s, 2 * p - 1 - s)].append((PHASES[row.tasks.phase], s, dict(row.tasks.fixed).get("m", 0)))
        return found

    return ordered


@pytest.mark.parametrize("p", [1, 2, 3, 4, 7, 8])
def test_zb_v_is_the_order_of_pytorch(p: int, orders: Callable[..., Orders]) -> None:
    for m in (1, p, 2 * p - 1, 2 * p, 3 * p + 2):
        assert orders("zb_v", p, m) == _pytorch(schedules.ScheduleZBVZeroBubble, p, m)


@pytest.mark.parametrize("p", [2, 3, 4, 7])
def test_v_schedule_is_zb_v_by_its_numbers(p: int, orders: Callable[..., Orders]) -> None:
    ahead, line = [2 * (p - d) - 1 for d in range(p)], [*range(p)]
    for m in (2 * p - 1, 2 * p, 3 * p + 2):
        assert orders("v_schedule", p, m, f", {ahead}, {line}, {line}, {p}") == orders("zb_v", p, m)


@pytest.mark.parametrize(
    ("ahead", "late", "last", "tail"), [((6, 4, 1), (0, 2, 5), (1, 3, 4), 7), ((4, 3, 2), (3, 2, 0), (0, 0, 9), 99)]
)
def test_v_schedule_is_what_the_solver_runs(
    ahead: tuple[int, ...], late: tuple[int, ...], last: tuple[int, ...], tail: int, orders: Callable[..., Orders]
) -> None:
    found = orders("v_schedule", 3, 9, f", {[*ahead]}, {[*late]}, {[*last]}, {tail}")
    for d, numbers in enumerate(zip(ahead, late, last, strict=True)):
        assert found[d] == [("FBW"[kind], s, k) for kind, s, k in vee.row(3, 9, d, *numbers, tail)]


@pytest.mark.parametrize("p", [1, 2, 3, 4, 7, 8])
def test_dual_pipe_v_is_the_order_of_pytorch(p: int, orders: Callable[..., Orders]) -> None:
    for m in (2 * p, 2 * p + 1, 3 * p + 2):
        assert orders("dual_pipe_v", p, m) == _pytorch(schedules.ScheduleDualPipeV, p, m)


def _pytorch(schedule: Any, p: int, m: int) -> Orders:
    """What PyTorch's class has each rank run. A forward beside a backward goes first here."""
    me = SimpleNamespace(pp_group_size=p, _n_microbatches=m, num_stages=2 * p)
    return [list(_tasks(schedule._calculate_single_rank_operations(me, rank))) for rank in range(p)]


def _tasks(actions: Any) -> Any:
    for action in actions:
        if action is not None and action.sub_actions:
            yield from _tasks(action.sub_actions)
        elif action is not None:
            for kind in PYTORCH[action.computation_type.name]:
                yield kind, action.stage_index, action.microbatch_index


BUBBLE = {  # in halves of F = B = W
    "zb_v": lambda p: 0,
    "dual_pipe_v": lambda p: p - 1,
    "v_half": lambda p: 3 * p - 3 - p % 2,
    "v_min": lambda p: 4 * p - 5 + (p % 3 == 0) + (p == 2),
}
IN_FLIGHT = {  # in halves of a micro-batch
    "zb_v": lambda p: 2 * p,
    "dual_pipe_v": lambda p: 2 * p + 1,
    "v_half": lambda p: 2 * (p // 2) + 2,
    "v_min": lambda p: 2 * ((p + 4) // 3),
}


SIZES = [pytest.param(p, marks=() if p in CORNERS else pytest.mark.slow) for p in range(2, MOST + 1)]


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("name", BUBBLE)
def test_bubble_and_memory(name: str, p: int, orders: Callable[..., Orders]) -> None:
    for m in (2 * p, 3 * p + 1):
        _check(orders, name, p, m)


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("name", ["zb_v", "v_half", "v_min"])
def test_few_micro_batches(name: str, p: int, orders: Callable[..., Orders]) -> None:
    for m in (p, p + 1):
        _check(orders, name, p, m)


@settings(max_examples=30)
@given(name=st.sampled_from([*BUBBLE]), p=st.integers(2, 9), more=st.integers(0, 12))
def test_any_number_of_micro_batches(orders: Callable[..., Orders], name: str, p: int, more: int) -> None:
    _check(orders, name, p, 2 * p + more if name == "dual_pipe_v" else p + more)


def _check(orders: Callable[..., Orders], name: str, p: int, m: int) -> None:
    """Asserts that each task runs once, and with 2 p micro-batches or more what the schedule promises. Memory is a
    matter of each device's order alone, so with other times nothing changes about it."""
    found = orders(name, p, m)
    assert sum(map(len, found)) == len(set(chain.from_iterable(found))) == 3 * 2 * p * m
    assert _idle(found, {"F": 3, "B": 2, "W": 1}) >= 0
    assert max(map(_in_flight, found)) <= IN_FLIGHT[name](p)
    if m >= 2 * p:
        assert _idle(found, {"F": 1, "B": 1, "W": 1}) == BUBBLE[name](p)
        assert max(map(_in_flight, found)) == IN_FLIGHT[name](p)


def _idle(orders: Orders, times: Mapping[str, int]) -> int:
    """The longest that a device stands idle between its first task and its last, if every task starts once it may."""
    last = 2 * len(orders) - 1
    ended: dict[Task, int] = {}
    begun, now, todo = [-1] * len(orders), [0] * len(orders), [list(reversed(device)) for device in orders]
    while any(todo):
        moved = False
        for d, device in enumerate(todo):
            while device and all(t in ended for t in _needed(device[-1], last)):
                task = device.pop()
                start = max([now[d], *(ended[t] for t in _needed(task, last))])
                begun[d] = start if begun[d] < 0 else begun[d]
                ended[task] = now[d] = start + times[task[0]]
                moved = True
        assert moved, "the devices wait for each other"
    return max(now[d] - begun[d] - sum(times[k] for k, _, _ in device) for d, device in enumerate(orders))


def _needed(task: Task, last: int) -> list[Task]:
    kind, s, m = task
    match kind:
        case "F":
            return [("F", s - 1, m)] if s > 0 else []
        case "B":
            return [("F", s, m), *([("B", s + 1, m)] if s < last else [])]
        case _:
            return [("B", s, m)]


def _in_flight(device: list[Task]) -> int:
    """Stages of micro-batches whose forward has begun and whose wgrad has not ended, at most."""
    alive = most = 0
    for kind, _, _ in device:
        alive += {"F": 1, "B": 0, "W": 0}[kind]
        most = max(most, alive)
        alive -= kind == "W"
    return most


@pytest.mark.parametrize("name", ["zb_v", "dual_pipe_v", "v_half", "v_min"])
def test_an_odd_stage_is_refused(name: str) -> None:
    text = PLAN.format(name=name, p=2, sizes=8, stages=3, m=8, numbers="")
    with pytest.raises(PlanError) as caught:
        interpret_all(parse(Source("v.ssp", text)), model_of(3))[0]
    said = render(caught.value.diagnostics[0])
    assert "each device has two stages" in said and "v.ssp:6:1" in said
    assert "help: give the call other arguments" in said
