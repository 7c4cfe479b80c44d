"""What holds of every simulated step, whatever the plan and the costs."""

from dataclasses import replace
from itertools import pairwise

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.link import Link
from ssdsl.lower.schedule import Schedule, Task, TimeIndex, Transfer
from ssdsl.plan.plan import Phase
from ssdsl.simulate.costs import Costs
from ssdsl.simulate.measured import Measured, Times
from ssdsl.simulate.report import Report
from ssdsl.simulate.run import Trace, run
from ssdsl.simulate.timeline import Kind, Stream
from tests.simulate.steps import UNIT, cluster_of, compiled, step

CHAIN = "models.py:chain_of_8"
PIPELINES: dict[str, dict[str, int]] = {
    "pipeline": {},
    "one_f_one_b": {},
    "eager": {},
    "interleaved": {"V": 2},
    "zero_bubble": {"H": 2},
    "v_shaped": {},
    "halves": {},
}
plans = pytest.mark.parametrize("plan", PIPELINES)
times = st.floats(0.0, 10.0, allow_subnormal=False)
Node = tuple[str, int, Task]


def schedule_of(plan: str) -> Schedule:
    size = {"M": 4} if plan == "halves" else {"S": 4, "M": 8}
    return compiled(plan, CHAIN, **size, **PIPELINES[plan]).schedule


def step_of(plan: str, costs: Costs | Times | None = None, cluster: str | Cluster = "a100x1024") -> Report:
    size = {"M": 4} if plan == "halves" else {"S": 4, "M": 8}
    return step(compiled(plan, CHAIN, **size, **PIPELINES[plan]), costs, cluster)


@st.composite
def measured(draw: st.DrawFn, schedule: Schedule) -> Measured:
    """A cost of its own for every block and phase, and for every transfer."""
    tasks = {f"{b.name}.{phase}": draw(times) for b in schedule.blocks for phase in Phase}
    transfers = {f"{t.number}.{p}": draw(times) for t in schedule.transfers for p in (Phase.FORWARD, Phase.BACKWARD)}
    return Measured(schedule, Times(tasks=tasks, transfers=transfers))


# -- the critical path, found without the simulator ------------------------------------------------------------------


def agree(
    one: tuple[TimeIndex, ...], at: tuple[int, ...], other: tuple[TimeIndex, ...], there: tuple[int, ...]
) -> bool:
    held = dict(zip((t.name for t in one), at, strict=True))
    return all(held.get(t.name, c) == c for t, c in zip(other, there, strict=True))


def ends(schedule: Schedule, transfer: Transfer, task: Task) -> tuple[list[Task], list[Task]]:
    """The tasks that make what a transfer carries, and those that read it."""
    forward = task.phase is Phase.FORWARD
    phases = (Phase.FORWARD,) if forward else (Phase.BACKWARD, Phase.DGRAD)
    found = []
    for number in (transfer.producer, transfer.consumer):
        block = schedule.blocks[number]
        roles = [r for r in schedule.roles if r.is_in(block.submesh)]
        own = dict.fromkeys(t for r in roles for t in r.tasks if t.transfer is None and t.block == number)
        here = [t for t in own if t.phase in phases]
        found.append([t for t in here if agree(block.time, t.coordinate, transfer.time, task.coordinate)])
    return (found[0], found[1]) if forward else (found[1], found[0])


def dependencies(schedule: Schedule, costs: Costs) -> networkx.DiGraph:
    """Tasks of each role and transfers, with what each waits for; `cost` on the edges that leave a node."""
    graph = networkx.DiGraph()
    cost: dict[Node, float] = {}
    for r, role in enumerate(schedule.roles):
        own = [("task", r, t) for t in role.tasks if t.transfer is None]
        for node in own:
            cost[node] = costs.task(schedule.blocks[node[2].block], node[2].phase, role).time_s
        graph.add_nodes_from(own)
        graph.add_edges_from(pairwise(own))
    for task in dict.fromkeys(t for role in schedule.roles for t in role.tasks if t.transfer is not None):
        assert task.transfer is not None
        transfer = schedule.transfers[task.transfer]
        node = ("transfer", 0, task)
        cost[node] = costs.transfer(transfer, task.phase).time_s
        for before, after in [ends(schedule, transfer, task)]:
            graph.add_edges_from((n, node) for n in cost if n[0] == "task" and n[2] in before)
            graph.add_edges_from((node, n) for n in cost if n[0] == "task" and n[2] in after)
    graph.add_edges_from((node, "end") for node in cost)
    for one, _, edge in graph.edges(data=True):
        edge["cost"] = cost[one]
    return graph


def longest(graph: networkx.DiGraph) -> float:
    return float(networkx.dag_longest_path_length(graph, weight="cost"))


@plans
@settings(max_examples=4, deadline=None, derandomize=True)
@given(st.data())
def test_not_shorter_than_the_critical_path_nor_longer_than_everything(plan: str, data: st.DataObject) -> None:
    schedule = schedule_of(plan)
    costs = data.draw(measured(schedule))
    graph = dependencies(schedule, costs)
    moved = [node for node in graph if node[0] == "transfer"]
    assert moved and all(graph.in_degree(n) == 1 and graph.out_degree(n) > 1 for n in moved)  # one of them is the end
    found = step_of(plan, costs).step_s
    everything = sum({one: edge["cost"] for one, _, edge in graph.edges(data=True)}.values())
    assert longest(graph) * (1 - 1e-9) <= found <= everything * (1 + 1e-9)
    trace = run(schedule, costs)
    waits_for_what_it_reads(schedule, trace, graph)


def waits_for_what_it_reads(schedule: Schedule, trace: Trace, graph: networkx.DiGraph) -> None:
    """Every task starts when all before it has ended, and all that it reads has arrived where it runs."""
    ended = {("task", x.role, x.task): x.end for x in trace.ran if x.task.transfer is None}
    ended |= {("transfer", 0, x.task): x.end for x in trace.ran if x.task.transfer is not None and not x.sends}
    started = {("task", x.role, x.task): x.start for x in trace.ran if x.task.transfer is None}
    started |= {("transfer", 0, x.task): x.start for x in trace.ran if x.task.transfer is not None and x.sends}
    assert set(started) == set(ended) == set(graph) - {"end"}
    for before, after in graph.edges:
        assert after == "end" or started[after] >= ended[before]


@plans
def test_nothing_but_the_critical_path_where_nothing_travels(plan: str) -> None:
    """Receives are posted early enough: what costs nothing holds nothing up."""
    costs = Measured(schedule_of(plan), Times(1.0, 1.5, 0.5))
    assert step_of(plan, costs).step_s == pytest.approx(longest(dependencies(schedule_of(plan), costs)))


# -- the timeline ----------------------------------------------------------------------------------------------------


@plans
@pytest.mark.parametrize("costs", [None, Times(1.0, 1.5, 0.5, 0.3), UNIT], ids=["roofline", "transfers", "unit"])
def test_its_timeline(plan: str, costs: Times | None) -> None:
    report = step_of(plan, costs)
    timeline = report.timeline
    assert timeline.step_s == report.step_s > 0
    assert list(timeline.events) == sorted(timeline.events, key=lambda e: e.start_s)
    for e in timeline.events:
        assert 0 <= e.start_s <= e.end_s <= report.step_s * (1 + 1e-12)
        assert all(1 <= line <= len(timeline.text.splitlines()) for line in e.lines)
    for row in range(len(timeline.rows)):
        own = [e for e in timeline.events if e.row == row and e.stream is Stream.COMPUTE]
        assert own and all(one.end_s <= other.start_s for one, other in pairwise(own))
        assert sum(e.end_s - e.start_s for e in own) <= report.step_s * (1 + 1e-12)


@plans
def test_flows_join_a_send_with_its_receive(plan: str) -> None:
    timeline = step_of(plan, Times(1.0, 1.5, 0.5, 0.3)).timeline
    joined = [number for flow in timeline.flows for number in (flow.source, flow.target)]
    assert sorted(joined) == [n for n, e in enumerate(timeline.events) if e.kind is Kind.TRANSFER]
    for flow in timeline.flows:
        sent, received = timeline.events[flow.source], timeline.events[flow.target]
        assert sent.row != received.row
        assert (sent.start_s, sent.end_s, sent.coordinate) == (received.start_s, received.end_s, received.coordinate)
        assert sent.name.partition(" to ")[0] == received.name.partition(" from ")[0]
        assert " to " in sent.name and " from " in received.name


# -- what changes the time, and what does not ------------------------------------------------------------------------


@plans
@settings(max_examples=3, deadline=None, derandomize=True)
@given(st.data())
def test_twice_the_costs_are_twice_the_time(plan: str, data: st.DataObject) -> None:
    once = data.draw(measured(schedule_of(plan)))
    double = {k: 2 * v for k, v in once.times.tasks.items()}, {k: 2 * v for k, v in once.times.transfers.items()}
    twice = Measured(once.schedule, Times(tasks=double[0], transfers=double[1]))
    assert step_of(plan, twice).step_s == pytest.approx(2 * step_of(plan, once).step_s)
    assert step_of(plan, twice).bubble == pytest.approx(step_of(plan, once).bubble)


def scaled(link: Link, factor: float) -> Link:
    return replace(link, bandwidth=link.bandwidth * factor, latency=link.latency / factor)


def faster(cluster: Cluster, factor: float) -> Cluster:
    groups = [
        replace(g, levels=tuple(replace(x, link=scaled(x.link, factor)) for x in g.levels)) for g in cluster.groups
    ]
    return replace(cluster, groups=tuple(groups))


@pytest.mark.parametrize("plan", ["one_f_one_b", "v_shaped", "interleaved"])
@settings(max_examples=4, deadline=None, derandomize=True)
@given(factors=st.lists(st.floats(1.0, 1e3), min_size=2, max_size=4))
def test_faster_links_never_slow_a_step(plan: str, factors: list[float]) -> None:
    clusters = [faster(cluster_of("v100x32"), f / 1e3) for f in sorted(factors)]
    found = [step_of(plan, cluster=c).step_s for c in clusters]
    assert all(slow * (1 + 1e-12) >= fast for slow, fast in pairwise(found))


def test_replicas_do_not_change_the_time_of_a_pipeline() -> None:
    """Twice the replicas with twice the batch: tasks and transfers are the same; only gradients travel further."""
    one = step(compiled("wide_pipeline", CHAIN, D=1))
    two = step(compiled("wide_pipeline", "models.py:chain_of_8_twice_the_batch", D=2))
    assert [d.span_s for d in two.devices] == pytest.approx([d.span_s for d in one.devices])
    assert all(d.reduce_s > 0 for d in two.devices) and not any(d.reduce_s for d in one.devices)
    assert (
        step(compiled("wide_pipeline", CHAIN, D=8), UNIT).step_s == step(compiled("wide_pipeline", CHAIN), UNIT).step_s
    )


def test_what_is_simulated_does_not_grow_with_the_mesh() -> None:
    """Roles are simulated, not devices: 512 of them take as many events as 8."""
    params = {"S": 8, "M": 8}
    few = step(compiled("megatron", "gpt:tiny,layers=8,batch=64,heads=8", D=1, T=1, **params))
    many = step(compiled("megatron", "gpt:tiny,layers=8,batch=64,heads=8", D=8, T=8, **params))
    assert [len(row.ranks) for row in few.timeline.rows] == [1] * 8
    assert [len(row.ranks) for row in many.timeline.rows] == [64] * 8
    few_events, many_events = (
        [e for e in report.timeline.events if e.kind is not Kind.REDUCE]  # one replica has nothing to reduce
        for report in (few, many)
    )
    assert len(many_events) == len(few_events) > 8 * 8 * 2
