"""Timelines in Chrome's Trace Event Format, which https://ui.perfetto.dev and chrome://tracing open.

A process is a row, a thread one of its streams. Perfetto shows overlapping events of one thread as nested calls, so
events that overlap (a send and a receive) go to different threads. Times are whole nanoseconds, so that no event ends
after the start of the next one by rounding.
"""

from collections.abc import Iterator
from typing import Any

from ssdsl.show.charts.gantt import MARKS, TASKS, micro_batch
from ssdsl.show.pattern import ranks
from ssdsl.simulate.timeline import Event, Memory, Stream, Timeline, TransferArrow

FIRST_THREAD = {Stream.COMPUTE: 1, Stream.TRANSFER: 10_001}
Json = dict[str, Any]


def chrome_trace(*timelines: Timeline) -> Json:
    """All timelines in one file, for instance a simulated and a measured one; their rows of the same name are
    neighbours."""
    names = list(dict.fromkeys(row.name for timeline in timelines for row in timeline.rows))
    events: list[Json] = []
    flows = 0
    for place, timeline in enumerate(timelines):
        pids = [1 + names.index(row.name) * len(timelines) + place for row in timeline.rows]
        threads = _threads(timeline)
        events += _processes(timeline, pids, is_alone=len(timelines) == 1)
        events += _thread_names(timeline, pids, threads)
        events += (_task(event, pids[event.row], tid) for event, tid in zip(timeline.events, threads, strict=True))
        for flow in timeline.flows:
            flows += 1
            events += _arrow(timeline, flow, pids, threads, flows)
        for memory in timeline.memory:
            events += _counters(memory, pids[memory.row], timeline.step_s)
    plans = [{"title": t.title, "plan": t.plan, "text": t.text, "step_s": t.step_s} for t in timelines]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"timelines": plans}}


def _threads(timeline: Timeline) -> list[int]:
    """A thread for each event: the first of its row and stream that is free when it starts."""
    free: dict[tuple[int, Stream], list[int]] = {}
    threads = []
    for event in timeline.events:
        ends = free.setdefault((event.row, event.stream), [])
        lane = next((n for n, end in enumerate(ends) if end <= _ns(event.start_s)), len(ends))
        ends[lane : lane + 1] = [_ns(event.end_s)]
        threads.append(FIRST_THREAD[event.stream] + lane)
    return threads


def _processes(timeline: Timeline, pids: list[int], is_alone: bool) -> Iterator[Json]:
    for row, pid in zip(timeline.rows, pids, strict=True):
        name = f"{row.name} (ranks {ranks(row.ranks)})"
        yield _metadata("process_name", pid, 0, name=name if is_alone else f"{timeline.title}: {name}")
        yield _metadata("process_sort_index", pid, 0, sort_index=pid)
        if row.device:
            yield _metadata("process_labels", pid, 0, labels=row.device)


def _thread_names(timeline: Timeline, pids: list[int], threads: list[int]) -> Iterator[Json]:
    used = {(e.row, tid, e.stream) for e, tid in zip(timeline.events, threads, strict=True)}
    for row, tid, stream in sorted(used):
        lane = tid - FIRST_THREAD[stream]
        yield _metadata("thread_name", pids[row], tid, name=f"{stream} {lane + 1}" if lane else str(stream))
        yield _metadata("thread_sort_index", pids[row], tid, sort_index=tid)


def _metadata(what: str, pid: int, tid: int, **args: str | int) -> Json:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _task(event: Event, pid: int, tid: int) -> Json:
    """The event of a task. Perfetto chooses colours by the name without digits, so equal kinds of equal modules look
    alike."""
    letter = MARKS[event.kind].letter if event.kind in TASKS else ""
    name = f"{letter}{micro_batch(event)} {event.name}" if letter else f"{event.name} {micro_batch(event)}"
    args: Json = {"coordinate": dict(event.coordinate), "lines": list(event.lines)}
    if event.communication_s:
        args["communication_us"] = _us(_ns(event.communication_s))
    if event.size_bytes:
        args["bytes"] = event.size_bytes
    if letter:
        args["order"] = "plan" if event.from_plan else "compiler"
    start, end = _ns(event.start_s), _ns(event.end_s)
    times = {"ts": _us(start), "dur": _us(max(0, end - start))}
    return {"ph": "X", "name": name.strip(), "cat": str(event.kind), "pid": pid, "tid": tid, **times, "args": args}


def _arrow(timeline: Timeline, flow: TransferArrow, pids: list[int], threads: list[int], number: int) -> Iterator[Json]:
    """An arrow from the start of a send to the last nanosecond of its arrival, so that both times lie inside their
    events."""
    sent, arrived = timeline.events[flow.source], timeline.events[flow.target]
    common = {"name": sent.name, "cat": "flow", "id": number}
    start = _ns(sent.start_s)
    end = max(_ns(arrived.start_s), _ns(arrived.end_s) - 1)
    yield {"ph": "s", **common, "pid": pids[sent.row], "tid": threads[flow.source], "ts": _us(start)}
    yield {"ph": "f", "bp": "e", **common, "pid": pids[arrived.row], "tid": threads[flow.target], "ts": _us(end)}


def _counters(memory: Memory, pid: int, step_s: float) -> Iterator[Json]:
    """The memory curve. Its last value is repeated at the end of the step."""
    points = list(zip(memory.times_s, memory.size_bytes, strict=True))
    if points and points[-1][0] < step_s:
        points.append((step_s, points[-1][1]))
    for time, held in points:
        yield {"ph": "C", "name": "memory", "pid": pid, "tid": 0, "ts": _us(_ns(time)), "args": {"bytes": held}}


def _ns(time_s: float) -> int:
    return round(time_s * 1e9)


def _us(time_ns: int) -> float:
    return time_ns / 1000
