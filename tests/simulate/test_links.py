"""Links have latency and occupancy: messages leave one after another, and their latencies overlap."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssdsl.cluster.cluster import Cluster, Level
from ssdsl.cluster.link import Link
from ssdsl.ir.comm import Signal
from ssdsl.ir.execute import ActionPart
from ssdsl.ir.program import Action, Program, Role, Start
from ssdsl.record import replace
from ssdsl.simulate.price.costs import Cost, Costs
from ssdsl.simulate.price.network import Network
from ssdsl.simulate.profile.measured import Measured, Times
from ssdsl.simulate.profile.profiled import received_bytes
from ssdsl.simulate.run import Interval, Trace, run
from tests.simulate.steps import cluster_of, compiled, step
from tests.simulate.test_step import CHAIN, PIPELINES, dependencies, longest, measured

Way = tuple[bool, int, int]  # of values or of gradients, from a role, to a role
pipelines = st.tuples(st.sampled_from(sorted(PIPELINES.keys() - {"halves"})), st.sampled_from([2, 4]), st.just(8))
latencies = st.floats(0.0, 20.0, allow_subnormal=False)


@dataclass(frozen=True)
class Delayed:
    """The same costs, with a latency for every message."""

    costs: Costs
    latency_s: float

    def of(self, action: Action, role: Role) -> Cost:
        cost = self.costs.of(action, role)
        return replace(cost, latency_s=self.latency_s) if isinstance(action, Start) else cost


def program_of(plan: str, stages: int, micro_batches: int) -> Program:
    return compiled(plan, CHAIN, S=stages, M=micro_batches, **PIPELINES[plan]).program


def step_s(program: Program, costs: Costs, **options: bool) -> float:
    return max(run(program, costs, **options).ended)


def most_in_a_row(program: Program) -> int:
    """The most messages of which each waits for the one before, over tasks."""
    nothing = Measured(program, Times())
    graph = dependencies(program, nothing)
    for one, _, edge in graph.edges(data=True):
        edge["cost"] = one[0] == "transfer"
    return round(longest(graph))


def by_way(trace: Trace) -> dict[Way, list[tuple[Interval, Interval]]]:
    """The messages that take one way, each where it leaves and where it arrives, in the order in which they leave."""
    found: dict[Way, list[tuple[Interval, Interval]]] = {}
    for a, b in trace.flows:
        sent, received = trace.intervals[a], trace.intervals[b]
        assert isinstance(sent.action, Start)
        found.setdefault((sent.action.gradient, sent.role, received.role), []).append((sent, received))
    return {way: sorted(pairs, key=lambda pair: pair[0].start) for way, pairs in found.items()}


@settings(max_examples=25, deadline=None, derandomize=True)
@given(pipelines, latencies, st.booleans(), st.data())
def test_a_latency_adds_no_more_than_the_messages_that_wait_for_each_other(
    pipeline: tuple[str, int, int], latency_s: float, blocks: bool, data: st.DataObject
) -> None:
    program = program_of(*pipeline)
    costs = data.draw(measured(program))
    without, found = (step_s(program, Delayed(costs, each), blocks=blocks) for each in (0.0, latency_s))
    assert without * (1 - 1e-9) <= found <= (without + most_in_a_row(program) * latency_s) * (1 + 1e-9)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(pipelines, latencies, st.data())
def test_a_step_is_not_shorter_than_its_critical_path(
    pipeline: tuple[str, int, int], latency_s: float, data: st.DataObject
) -> None:
    program = program_of(*pipeline)
    costs = data.draw(measured(program))
    graph = dependencies(program, costs)
    for one, _, edge in graph.edges(data=True):
        edge["cost"] += latency_s if one[0] == "transfer" else 0.0
    assert networkx.dag_longest_path_length(graph, "cost") <= step_s(program, Delayed(costs, latency_s)) * (1 + 1e-9)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(pipelines, latencies, st.data())
def test_messages_leave_one_after_another_and_arrive_a_latency_later(
    pipeline: tuple[str, int, int], latency_s: float, data: st.DataObject
) -> None:
    program = program_of(*pipeline)
    trace = run(program, Delayed(data.draw(measured(program)), latency_s))
    assert sum(map(len, by_way(trace).values())) == sum(x.part is ActionPart.SENT for x in trace.intervals) > 0
    for pairs in by_way(trace).values():
        for (sent, received), (after, _) in pairwise([*pairs, pairs[-1]]):
            assert received.start == sent.start + latency_s and received.end == pytest.approx(sent.end + latency_s)
            assert sent.end <= after.start or sent is after


# -- clusters ----------------------------------------------------------------------------------------------------------


def links(cluster: Cluster, bandwidth: float, latency: float) -> Cluster:
    """The cluster with other links for messages; those of collectives stay."""

    def changed(levels: tuple[Level, ...]) -> Iterator[Level]:
        for level in levels:
            yield replace(level, link=replace(level.link, send_bandwidth=bandwidth, send_latency=latency))

    groups = tuple(replace(g, levels=tuple(changed(g.levels))) for g in cluster.groups)
    return replace(cluster, groups=groups, levels=tuple(changed(cluster.levels)))


@settings(max_examples=15, deadline=None, derandomize=True)
@given(pipelines, st.floats(1e6, 1e11), st.floats(0.0, 1.0, allow_subnormal=False))
def test_on_clusters(pipeline: tuple[str, int, int], bandwidth: float, latency_s: float) -> None:
    plan, stages, count = pipeline
    found = compiled(plan, CHAIN, S=stages, M=count, **PIPELINES[plan])
    clusters = (links(cluster_of("a100x64"), bandwidth, each) for each in (0.0, latency_s))
    without, slow = (step(found, cluster=cluster).step_s for cluster in clusters)
    most = without + most_in_a_row(found.program) * latency_s
    assert without * (1 - 1e-9) <= slow <= most * (1 + 1e-9)


def test_micro_batches_do_not_wait_for_each_others_latency() -> None:
    """One trip there and one back, however many micro-batches; each leaves behind the one before."""
    cluster = cluster_of("a100x64")
    for count in (2, 8):
        found = compiled("pipeline", CHAIN, S=2, M=count)
        without, far = (step(found, cluster=links(cluster, 1e9, latency)).step_s for latency in (0.0, 1.0))
        assert far == pytest.approx(without + 2.0)
        slow = links(cluster, 1e3, 1.0)
        leaves_s = Network(slow).message(found.program.messages[0], False).time_s
        assert step(found, cluster=slow).step_s == pytest.approx(2 * (count * leaves_s + 1.0), rel=1e-3)


def test_a_message_is_as_long_as_it_was_sent_in_one() -> None:
    """Bytes over bandwidth, and then a latency; the latencies of pieces from several devices overlap."""
    found = compiled("pipeline", CHAIN, S=2, M=2).program
    cost = Network(links(cluster_of("a100x64"), 1e6, 0.25)).message(found.messages[0], False)
    assert (cost.time_s, cost.latency_s) == (cost.sent[0].size_bytes / 1e6, 0.25)
    assert cost.arrives_s == cost.time_s + 0.25
    wire = Link("wire", 1e6, 0.5)
    assert wire.message_latency + 1e6 / wire.message_bandwidth == 1.5


def test_a_signal_is_one_byte_everywhere() -> None:
    program = compiled("across", "gpt:tiny,layers=4,batch=8").program
    signals = [m for m in program.messages if isinstance(m, Signal)]
    assert signals and {received_bytes(m, False) for m in signals} == {1}
    network = Network(links(cluster_of("a100x64"), 1.0, 0.0))
    assert {network.message(m, False).time_s for m in signals} == {1.0}
