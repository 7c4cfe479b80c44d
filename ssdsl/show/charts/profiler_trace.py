"""Timelines in the format of PyTorch's profiler, a file a rank, for tools that read its traces.

HolisticTraceAnalysis tells communication from computing by the names of kernels: NCCL's begin with `ncclDevKernel`. It
reads the rank from `distributedInfo`, streams and launches from the arguments of events. A kernel is launched when the
one before it on its stream starts, so that no device waits for its host:

    host        launch A, B     launch C
    stream 7    AAAAAAAAAAAAAAAABBBBBBBBCCCC
    stream 20                ncclDevKernel_AllReduce_Sum
"""

from collections.abc import Iterator
from typing import Any

from ssdsl.record import Record
from ssdsl.show.charts.gantt import micro_batch
from ssdsl.simulate.timeline import Event, EventKind, Stream, Timeline

COMPUTE_STREAM, FIRST_STREAM = 7, 20  # of communication there are as many streams as run side by side
HOST = 10_000  # process and thread of the host
KERNELS = {  # by the kind of communication: NCCL's kernel, and the name of the collective in PyTorch
    "all_reduce": ("AllReduce_Sum", "allreduce"),
    "all_gather": ("AllGather", "_allgather_base"),
    "reduce_scatter": ("ReduceScatter_Sum", "_reduce_scatter_base"),
    "all_to_all": ("SendRecv", "all_to_allv"),
    "exchange": ("SendRecv", "all_to_allv"),
    "broadcast": ("Broadcast", "broadcast"),
    "send": ("SendRecv", "send"),
}
Json = dict[str, Any]


class TracedKernel(Record):
    """A kernel of a rank on a stream, in whole nanoseconds from the start of the step."""

    start_ns: int
    end_ns: int
    name: str
    stream: int
    args: Json


def profiler_traces(timeline: Timeline) -> Iterator[tuple[int, Json]]:
    """Yields each rank with the contents of its file."""
    world = sum(len(row.ranks) for row in timeline.rows)
    for number, row in enumerate(timeline.rows):
        kernels = sorted((*_computing(timeline, number), *_communication(timeline, number)), key=lambda k: k.start_ns)
        for rank in row.ranks:
            yield (
                rank,
                {
                    "schemaVersion": 1,
                    "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
                    "deviceProperties": [{"id": rank, "name": row.device}],
                    "displayTimeUnit": "ms",
                    "traceName": f"{timeline.title}, {row.name}",
                    "traceEvents": [_step(rank, timeline.step_s), *_events(rank, kernels)],
                },
            )


def _computing(timeline: Timeline, row: int) -> Iterator[TracedKernel]:
    """The computing part of each task, and the optimizer."""
    for event in timeline.events:
        start, end = _ns(event.start_s), _ns(event.end_s - event.communication_s)
        if event.row == row and event.stream is Stream.COMPUTE and end > start:
            yield TracedKernel(start, end, _task_name(event), COMPUTE_STREAM, {"lines": list(event.lines)})


def _task_name(event: Event) -> str:
    if event.kind is EventKind.OPTIMIZER:
        return event.name
    return f"{event.kind} {event.name} {micro_batch(event)}".strip()


def _communication(timeline: Timeline, row: int) -> Iterator[TracedKernel]:
    """A kernel for each kind of communication, on the first stream that is free."""
    free: list[int] = []
    for communication in sorted((c for c in timeline.communication if c.row == row), key=lambda c: c.start_s):
        start, duration = communication.start_s, communication.end_s - communication.start_s
        lane = next((n for n, end in enumerate(free) if end <= _ns(start)), len(free))
        free[lane : lane + 1] = [_ns(communication.end_s)]
        for kind, share, ranks in communication.parts:
            end = start + share * duration
            kernel, collective = KERNELS[kind]
            args = {"Collective name": collective, **({"Group size": ranks} if ranks else {})}
            yield TracedKernel(_ns(start), _ns(end), f"ncclDevKernel_{kernel}", FIRST_STREAM + lane, args)
            start = end


def _step(rank: int, step_s: float) -> Json:
    """The annotation that marks a step."""
    return {**_event("ProfilerStep#0", "user_annotation", HOST + rank, HOST, 0, _ns(step_s)), "args": {}}


def _events(rank: int, kernels: list[TracedKernel]) -> Iterator[Json]:
    """Kernels, and their launches on the host."""
    launched: dict[int, int] = {}  # the start of the last kernel, by stream
    for number, kernel in enumerate(kernels, 1):
        launch = _event("cudaLaunchKernel", "cuda_runtime", HOST + rank, HOST, launched.get(kernel.stream, 0), 0)
        yield {**launch, "args": {"correlation": number}}
        launched[kernel.stream] = kernel.start_ns
        args = {"device": rank, "stream": kernel.stream, "correlation": number, **kernel.args}
        times = kernel.start_ns, kernel.end_ns - kernel.start_ns
        yield {**_event(kernel.name, "kernel", rank, kernel.stream, *times), "args": args}


def _event(name: str, category: str, pid: int, tid: int, start_ns: int, duration_ns: int) -> Json:
    times = {"ts": start_ns / 1000, "dur": duration_ns / 1000}
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, **times}


def _ns(time_s: float) -> int:
    return round(time_s * 1e9)
