"""Traces as PyTorch's profiler writes them: their format, and what HolisticTraceAnalysis reads in them."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ssdsl.plan.regions import merged
from ssdsl.show.charts.profiler_trace import COMPUTE_STREAM, profiler_traces
from ssdsl.simulate.report import DeviceReport, Report
from tests.simulate.test_exposed import PLANS, simulated, slow

Spans = tuple[tuple[float, float], ...]
ALONE = ("data_parallel", "tensor_parallel", "zero", "context_parallel")  # plans in which no device waits for others
steps = pytest.mark.parametrize(("plan", "factor"), [(plan, f) for plan in PLANS for f in (1.0, 100.0)])


def files(report: Report) -> dict[int, dict[str, Any]]:
    """The contents of each rank's file, after a trip through JSON."""
    return {rank: json.loads(json.dumps(trace, allow_nan=False)) for rank, trace in profiler_traces(report.timeline)}


def kernels(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["cat"] == "kernel"]


def union(events: list[dict[str, Any]]) -> Spans:
    """The times of events in microseconds, overlapping ones joined."""
    spans: list[tuple[float, float]] = []
    for start, end in sorted((e["ts"], e["ts"] + e["dur"]) for e in events):
        if spans and start <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(end, spans[-1][1])
        else:
            spans.append((start, end))
    return merged(spans)


def length(spans: Spans) -> float:
    return sum(end - start for start, end in spans)


def both(one: Spans, other: Spans) -> float:
    """The microseconds that lie in both."""
    return sum(max(0.0, min(b, d) - max(a, c)) for a, b in one for c, d in other)


def computing_and_communicating(trace: dict[str, Any]) -> tuple[Spans, Spans]:
    found = kernels(trace)
    is_nccl = [e["name"].startswith("ncclDevKernel_") for e in found]
    return (
        union([e for e, nccl in zip(found, is_nccl, strict=True) if not nccl]),
        union([e for e, nccl in zip(found, is_nccl, strict=True) if nccl]),
    )


@steps
def test_kernels_are_those_of_the_report(plan: str, factor: float) -> None:
    """Computing and communication take as long as the report says; where devices wait for no others, communication
    beside computing is what is hidden, and the rest is exposed."""
    report = simulated(plan, slow(factor))
    traces = files(report)
    assert sorted(traces) == sorted(rank for device in report.devices for rank in device.ranks)
    for device in report.devices:
        for rank in device.ranks:
            computes, communicates = computing_and_communicating(traces[rank])
            assert length(computes) == pytest.approx((device.compute_s + device.optimizer_s) * 1e6, abs=0.5)
            assert length(communicates) == pytest.approx(device.communication_s * 1e6, abs=0.5)
            exposed = length(communicates) - both(computes, communicates)
            assert exposed >= device.exposed_s * 1e6 - 0.5
            if plan in ALONE:
                assert exposed == pytest.approx(device.exposed_s * 1e6, abs=0.5)


@pytest.mark.parametrize("plan", PLANS)
def test_the_format(plan: str) -> None:
    """What tools ask for: a rank, streams on which kernels follow each other, and a launch of each on the host."""
    report = simulated(plan, slow(1.0))
    for rank, trace in files(report).items():
        assert re.search(r'"rank":\s+(\d+)', json.dumps(trace)[:200])
        assert trace["distributedInfo"] == {"backend": "nccl", "rank": rank, "world_size": len(files(report))}
        launches = {e["args"]["correlation"]: e for e in trace["traceEvents"] if e["cat"] == "cuda_runtime"}
        streams: dict[int, list[tuple[float, float]]] = {}
        for kernel in kernels(trace):
            assert kernel["tid"] == kernel["args"]["stream"] and kernel["pid"] == kernel["args"]["device"] == rank
            assert launches.pop(kernel["args"]["correlation"])["ts"] <= kernel["ts"]
            assert ("Collective name" in kernel["args"]) == (kernel["tid"] != COMPUTE_STREAM)
            streams.setdefault(kernel["tid"], []).append((kernel["ts"], kernel["ts"] + kernel["dur"]))
        assert not launches
        assert all(end <= start + 1e-3 for times in streams.values() for (_, end), (start, _) in pairwise(times))


def test_names_of_kernels_and_collectives() -> None:
    """NCCL's kernels, and PyTorch's collectives."""
    found = {(e["name"], e["args"]["Collective name"]) for e in nccl("zero")}
    assert found == {
        ("ncclDevKernel_ReduceScatter_Sum", "_reduce_scatter_base"),
        ("ncclDevKernel_AllGather", "_allgather_base"),
    }
    assert {(e["name"], e["args"]["Collective name"]) for e in nccl("data_parallel")} == {
        ("ncclDevKernel_AllReduce_Sum", "allreduce")
    }
    assert {(e["name"], e["args"]["Collective name"]) for e in nccl("pipeline")} >= {("ncclDevKernel_SendRecv", "send")}
    assert {e["args"]["Group size"] for e in nccl("tensor_parallel")} == {2}


def nccl(plan: str) -> list[dict[str, Any]]:
    (trace, *_) = files(simulated(plan, slow(1.0))).values()
    return [e for e in kernels(trace) if e["tid"] != COMPUTE_STREAM]


def of_rank(table: Any, rank: int, column: str) -> float:
    """A figure of HolisticTraceAnalysis."""
    return float(table[table["rank"] == rank].iloc[0][column])


@pytest.mark.parametrize("plan", PLANS)
def test_holistic_trace_analysis_reads_it(plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures are those of the report. It calls hidden only what is beside computing; ours is also what is
    beside waiting for other devices."""
    analysis = pytest.importorskip("hta.trace_analysis")
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")  # it rounds to microseconds
    report = simulated(plan, slow(1.0))
    traces = files(report)
    for rank, trace in traces.items():
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace))
    read = analysis.TraceAnalysis(trace_dir=str(tmp_path))
    overlap, times = read.get_comm_comp_overlap(visualize=False), read.get_temporal_breakdown(visualize=False)
    for device in report.devices:
        for rank in device.ranks:
            computes, communicates = computing_and_communicating(traces[rank])
            hidden = both(computes, communicates) / length(communicates)
            assert of_rank(overlap, rank, "comp_comm_overlap_pctg") == pytest.approx(100 * hidden, abs=0.1)
            if plan in ALONE:
                assert hidden == pytest.approx(hidden_share(device), abs=1e-3)
            assert of_rank(times, rank, "compute_time(us)") == pytest.approx(length(computes), abs=1)
    idle, _ = read.get_idle_time_breakdown(ranks=[*traces], visualize=False)
    assert set(idle["idle_category"]) <= {"kernel_wait", "other"}  # and never for the host


def hidden_share(device: DeviceReport) -> float:
    return 1 - device.exposed_s / device.communication_s
