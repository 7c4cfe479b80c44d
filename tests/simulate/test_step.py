"""What holds of every simulated step, whatever the plan and the costs."""

from itertools import pairwise

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.link import Link
from ssdsl.ir.comm import Message, Transfer
from ssdsl.ir.execute import ActionPart
from ssdsl.ir.program import Action, Compute, Program, ScatterGrads, Start, StartReduce, WaitReduce
from ssdsl.ir.value import TimeIndex
from ssdsl.plan.plan import Phase
from ssdsl.record import replace
from ssdsl.simulate.exposed import ExposedPart
from ssdsl.simulate.price.costs import Costs
from ssdsl.simulate.profile.measured import Measured, Times
from ssdsl.simulate.report import Report
from ssdsl.simulate.run import Epilogue, Trace, epilogues, run
from ssdsl.simulate.timeline import EventKind, Stream
from tests.simulate.steps import UNIT, cluster_of, compiled, roofline, step

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
Carried = tuple[int, tuple[int, ...], bool]  # a message, its part, whether of a gradient
Node = tuple[str, int, Compute | Carried]


def program_of(plan: str) -> Program:
    size = {"M": 4} if plan == "halves" else {"S": 4, "M": 8}
    return compiled(plan, CHAIN, **size, **PIPELINES[plan]).program


def step_of(plan: str, costs: Costs | Times | None = None, cluster: str | Cluster = "a100x1024") -> Report:
    size = {"M": 4} if plan == "halves" else {"S": 4, "M": 8}
    return step(compiled(plan, CHAIN, **size, **PIPELINES[plan]), costs, cluster)


@st.composite
def measured(draw: st.DrawFn, program: Program) -> Measured:
    """A cost of its own for every function and phase, and for every message."""
    tasks = {f"{f.name}.{phase}": draw(times) for f in program.functions for phase in Phase}
    transfers = {f"{m.number}.{p}": draw(times) for m in program.messages for p in (Phase.FORWARD, Phase.BACKWARD)}
    return Measured(program, Times(tasks=tasks, transfers=transfers))


# -- the critical path, found without the simulator ------------------------------------------------------------------


def agree(
    one: tuple[TimeIndex, ...], at: tuple[int, ...], other: tuple[TimeIndex, ...], there: tuple[int, ...]
) -> bool:
    held = dict(zip((t.name for t in one), at, strict=True))
    return all(held.get(t.name, c) == c for t, c in zip(other, there, strict=True))


def ends(program: Program, carried: Carried) -> tuple[list[Compute], list[Compute]]:
    """The tasks that make what a message carries, and those that read it."""
    number, part, gradient = carried
    message = program.messages[number]
    phases = (Phase.BACKWARD, Phase.DGRAD) if gradient else (Phase.FORWARD,)
    found = []
    for end in (message.producer, message.consumer):
        function = program.functions[end]
        own = dict.fromkeys(t for r in program.roles if r.is_in(function.submesh) for t in r.computes())
        here = [t for t in own if t.function == end and t.phase in phases]
        found.append([t for t in here if agree(function.time, t.at, indices(message), part)])
    return (found[1], found[0]) if gradient else (found[0], found[1])


def indices(message: Message) -> tuple[TimeIndex, ...]:
    return message.time if isinstance(message, Transfer) else ()


def carried_by(action: Start) -> Carried:
    return action.message, action.at, action.gradient


def dependencies(program: Program, costs: Costs) -> networkx.DiGraph:
    """Tasks of each role and messages, with what each waits for; `cost` on the edges that leave a node."""
    graph = networkx.DiGraph()
    cost: dict[Node, float] = {}
    starts: dict[Carried, float] = {}
    for r, role in enumerate(program.roles):
        own = [("task", r, t) for t in role.computes()]
        for node in own:
            cost[node] = costs.of(node[2], role).time_s
        graph.add_nodes_from(own)
        graph.add_edges_from(pairwise(own))
        starts |= {carried_by(a): costs.of(a, role).time_s for a in role.actions if isinstance(a, Start)}
    for carried, time in starts.items():
        node = ("transfer", 0, carried)
        cost[node] = time
        before, after = ends(program, carried)
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
    program = program_of(plan)
    costs = data.draw(measured(program))
    graph = dependencies(program, costs)
    moved = [node for node in graph if node[0] == "transfer"]
    assert moved and all(graph.in_degree(n) == 1 and graph.out_degree(n) > 1 for n in moved)  # one of them is the end
    found = step_of(plan, costs).step_s
    everything = sum({one: edge["cost"] for one, _, edge in graph.edges(data=True)}.values())
    assert longest(graph) * (1 - 1e-9) <= found <= everything * (1 + 1e-9)
    waits_for_what_it_reads(run(program, costs), graph)


def waits_for_what_it_reads(trace: Trace, graph: networkx.DiGraph) -> None:
    """Every task starts when all before it has ended, and all that it reads has arrived where it runs."""
    started, ended = {}, {}
    for x in trace.intervals:
        match x.action, x.part:
            case Compute() as task, _:
                started["task", x.role, task], ended["task", x.role, task] = x.start, x.end
            case Start() as start, ActionPart.SENT:
                started["transfer", 0, carried_by(start)] = x.start
            case Start() as start, ActionPart.RECEIVED:
                ended["transfer", 0, carried_by(start)] = x.end
    assert set(started) == set(ended) == set(graph) - {"end"}
    for before, after in graph.edges:
        assert after == "end" or started[after] >= ended[before]


@plans
def test_nothing_but_the_critical_path_where_nothing_travels(plan: str) -> None:
    """Receives are posted early enough: what costs nothing holds nothing up."""
    costs = Measured(program_of(plan), Times(1.0, 1.5, 0.5))
    assert step_of(plan, costs).step_s == pytest.approx(longest(dependencies(program_of(plan), costs)))


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
    assert sorted(joined) == [n for n, e in enumerate(timeline.events) if e.kind is EventKind.TRANSFER]
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
    once = data.draw(measured(program_of(plan)))
    double = {k: 2 * v for k, v in once.times.tasks.items()}, {k: 2 * v for k, v in once.times.transfers.items()}
    twice = Measured(once.program, Times(tasks=double[0], transfers=double[1]))
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
    in_one, in_two = ([dict(d.exposed_parts)[ExposedPart.GRADIENTS] for d in r.devices] for r in (one, two))
    assert all(seconds > 0 for seconds in in_two) and not any(in_one)
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
        [e for e in report.timeline.events if e.kind is not EventKind.REDUCE]  # one replica has nothing to reduce
        for report in (few, many)
    )
    assert len(many_events) == len(few_events) > 8 * 8 * 2


# -- gradients -------------------------------------------------------------------------------------------------------

BUCKETS = "gpt:tiny,layers=2,hidden=2048,heads=2,seq=8,vocab=64,batch=8"  # of 25 MB, several in each layer


def test_gradients_travel_under_the_backward_where_devices_have_hands_free() -> None:
    """On the cores of one machine they take as long as they take, wherever they begin."""
    built = compiled("two_halves", BUCKETS, meta=True)
    (role,) = built.program.roles
    costs = roofline(ProgramIndex(built.program), "laptop")
    (hidden,), (shown,) = (epilogues(run(built.program, costs, overlaps=o)) for o in (True, False))
    assert shown.reduce_s == pytest.approx(sum(costs.of(a, role).time_s for a in role.actions if is_reduction(a)))
    assert 0.1 * shown.reduce_s < hidden.reduce_s < 0.9 * shown.reduce_s


def is_reduction(action: Action) -> bool:
    return isinstance(action, ScatterGrads | StartReduce | WaitReduce)


def test_a_reduction_that_a_task_without_work_interrupts_counts_behind_it_alone() -> None:
    """The part in front of the last task lies within the tasks' span."""
    assert Epilogue(2.0, 3.0, 4.0, 0.0, ((0.5, 1.0), (1.5, 3.0))).reduce_s == 1.0
