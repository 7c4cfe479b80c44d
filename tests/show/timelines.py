"""Timelines of small pipelines, made without a simulator: 1F1B, ZB-H1 with backward in halves, and figures of them."""

from collections.abc import Callable, Iterator

from ssdsl.ir.program import Kernels
from ssdsl.record import replace
from ssdsl.simulate.exposed import ExposedPart
from ssdsl.simulate.report import DeviceReport, Report, Traffic
from ssdsl.simulate.timeline import Event, EventKind, Memory, Stream, Timeline, TimelineRow, TransferArrow

F, B, D, W = EventKind.FORWARD, EventKind.BACKWARD, EventKind.DGRAD, EventKind.WGRAD
TIMES_S = {F: 6e-3, B: 12e-3, D: 6e-3, W: 6e-3}
COLLECTIVES = {F: 0.25, B: 0.25, D: 0.25, W: 0.0}  # shares of a task
TRANSFER_S, REDUCE_S, OPTIMIZER_S = 1e-3, 4e-3, 8e-3
SENT_BYTES = 52_428_800
STATE_BYTES, ACTIVATION_BYTES, CAPACITY_BYTES = 18_400_000_000, 5_300_000_000, 80_000_000_000
TEXT = "split model by batch into m = M\nassign stage[s] to gpus[pp = s] for s in 0..S\none_f_one_b(stage, M)\n"

Queue = list[tuple[EventKind, int]]


def one_f_one_b(stages: int, micro_batches: int, times_s: dict[EventKind, float] = TIMES_S) -> Timeline:
    """Each stage alternates one forward and one backward, after a forward for every stage from it on."""
    queues = [_alternating(stages - s, micro_batches, lambda m: [(B, m)]) for s in range(stages)]
    return _run(f"1F1B, {stages} stages", queues, times_s, lambda kind, m: True)


def zb_h1(stages: int, micro_batches: int, times_s: dict[EventKind, float] = TIMES_S) -> Timeline:
    """1F1B whose stage s puts its gradients of weights off by s micro-batches; the last ones the compiler placed."""

    def halves(stage: int) -> Callable[[int], Queue]:
        return lambda m: [(D, m), *([(W, m - stage)] if m >= stage else [])]

    queues = [_alternating(stages - s, micro_batches, halves(s)) for s in range(stages)]
    for s, queue in enumerate(queues):
        queue += [(W, m) for m in range(max(0, micro_batches - s), micro_batches)]
    late = micro_batches - stages + 1
    return _run(f"ZB-H1, {stages} stages", queues, times_s, lambda kind, m: kind is not W or m < late)


def repeated(timeline: Timeline, times: int) -> Timeline:
    """The same with every row `times` times, as data parallelism makes them: `gpus_dp3_pp0`."""
    rows = len(timeline.rows)
    return replace(
        timeline,
        rows=tuple(
            TimelineRow(row.name.replace("_", f"_dp{k}_"), tuple(r + 2 * k * rows for r in row.ranks), row.device)
            for k in range(times)
            for row in timeline.rows
        ),
        events=tuple(replace(e, row=e.row + k * rows) for e in timeline.events for k in range(times)),
        flows=(),
        memory=tuple(replace(m, row=m.row + k * rows) for k in range(times) for m in timeline.memory),
    )


def report_of(timeline: Timeline, size: int = 2_000_000_000) -> Report:
    """A report with that timeline; `size` bytes are reduced."""
    devices = tuple(_device(timeline, number, row) for number, row in enumerate(timeline.rows))
    span = max(d.span_s for d in devices)
    bubble = (span - max(d.compute_s for d in devices)) / span
    traffic = (Traffic("nvlink", "all_reduce", 96, size), Traffic("network", "send", 14, 7 * SENT_BYTES))
    step = timeline.step_s
    figures = step, bubble, 3 * 10**15, 0.41, traffic, sum(len(d.ranks) for d in devices)
    return Report(timeline.title, timeline.plan, "h100x1024", devices, *figures, Kernels.EAGER, lambda: timeline)


def _alternating(warm_up: int, micro_batches: int, backward: Callable[[int], Queue]) -> Queue:
    first = min(warm_up, micro_batches)
    order = [(F, m) for m in range(first)]
    for m in range(micro_batches):
        order += backward(m)
        if first + m < micro_batches:
            order.append((F, first + m))
    return order


def _run(
    title: str, queues: list[Queue], times_s: dict[EventKind, float], planned: Callable[[EventKind, int], bool]
) -> Timeline:
    """Every stage runs its queue in order, each task as soon as what it needs has arrived."""
    stages, queues = len(queues), [list(queue) for queue in queues]
    events: list[Event] = []
    flows: list[tuple[Event, Event]] = []
    free = [0.0] * stages
    arrived: dict[tuple[EventKind, int, int], float] = {}
    while any(queues):
        for s, queue in enumerate(queues):
            while queue and (
                queue[0][0] is W or (queue[0][0] is F and s == 0) or (queue[0][0], s, queue[0][1]) in arrived
            ):
                kind, m = queue.pop(0)
                start = max(free[s], arrived.get((kind, s, m), 0.0))
                task = _task(kind, s, m, start, times_s[kind], planned(kind, m))
                events.append(task)
                free[s] = task.end_s
                after = s + 1 if kind is F else s - 1
                if kind is F and s == stages - 1:
                    arrived[B, s, m] = arrived[D, s, m] = task.end_s
                elif kind is not W and 0 <= after < stages:
                    sent = _transfer(task, s, "send")
                    received = _transfer(task, after, "receive")
                    events += sent, received
                    flows.append((sent, received))
                    arrived[kind, after, m] = received.end_s
    reduced = max(free) + REDUCE_S
    for s in range(stages):
        events.append(
            Event(s, Stream.COMPUTE, EventKind.REDUCE, free[s], free[s] + REDUCE_S, "gradients", (), REDUCE_S)
        )
        update = Event(s, Stream.COMPUTE, EventKind.OPTIMIZER, reduced, reduced + OPTIMIZER_S, "AdamW", from_plan=False)
        events.append(update)
    events.sort(key=lambda event: event.start_s)
    numbers = {event: number for number, event in enumerate(events)}
    return Timeline(
        title,
        "pipeline.ssp",
        TEXT,
        reduced + OPTIMIZER_S,
        tuple(TimelineRow(f"gpus_pp{s}", (2 * s, 2 * s + 1), "H100 80GB") for s in range(stages)),
        tuple(events),
        tuple(TransferArrow(numbers[source], numbers[target]) for source, target in flows),
        tuple(_memory(s, [e for e in events if e.row == s]) for s in range(stages)),
    )


def _task(kind: EventKind, stage: int, m: int, start: float, time: float, planned: bool) -> Event:
    name = f"h.{12 * stage} ... h.{12 * stage + 11}"
    end = start + time
    return Event(
        stage, Stream.COMPUTE, kind, start, end, name, (("m", m),), time * COLLECTIVES[kind], 0, (1, 3), planned
    )


def _transfer(task: Event, row: int, verb: str) -> Event:
    start, end = task.end_s, task.end_s + TRANSFER_S
    return Event(row, Stream.TRANSFER, EventKind.TRANSFER, start, end, verb, task.coordinate, 0.0, SENT_BYTES, (2,))


def _memory(row: int, events: list[Event]) -> Memory:
    """State, and the activations of a micro-batch from its forward to the end of its backward."""
    changes = sorted(_changes(events))
    times, sizes = [0.0], [STATE_BYTES]
    for time, change in changes:
        times.append(time)
        sizes.append(sizes[-1] + change)
    peak = max(sizes)
    parts = (("weights", 4_600_000_000), ("gradients", 4_600_000_000), ("optimizer", 9_200_000_000))
    held = *((0.0, size, part) for part, size in parts), *((t, change, "activations") for t, change in changes)
    parts += (("activations", peak - STATE_BYTES),)
    peak_s = times[sizes.index(peak)]
    return Memory(row, tuple(times), tuple(sizes), peak_s, peak, parts, CAPACITY_BYTES, changes=held)


def _changes(events: list[Event]) -> Iterator[tuple[float, int]]:
    last = W if any(e.kind is W for e in events) else B
    for event in events:
        if event.kind is F:
            yield event.start_s, ACTIVATION_BYTES
        elif event.kind is last:
            yield event.end_s, -ACTIVATION_BYTES


def _device(timeline: Timeline, number: int, row: TimelineRow) -> DeviceReport:
    events = [e for e in timeline.events if e.row == number and e.stream is Stream.COMPUTE]
    tasks = [e for e in events if e.kind in TIMES_S]
    communication = sum(e.communication_s for e in tasks)
    compute = sum(e.end_s - e.start_s for e in tasks) - communication
    memory = next(m for m in timeline.memory if m.row == number)
    exposed = {ExposedPart.COLLECTIVES: communication, ExposedPart.GRADIENTS: REDUCE_S}
    return DeviceReport(
        name=row.name,
        ranks=row.ranks,
        device=row.device,
        span_s=max(e.end_s for e in tasks) - min(e.start_s for e in tasks),
        compute_s=compute,
        optimizer_s=OPTIMIZER_S,
        communication_s=communication + REDUCE_S,
        exposed_parts=tuple((part, exposed.get(part, 0.0)) for part in ExposedPart),
        idle_share=1 - (compute + communication + REDUCE_S + OPTIMIZER_S) / timeline.step_s,
        peak_bytes=memory.peak_bytes,
        peak_parts=memory.peak_parts,
        capacity_bytes=memory.capacity_bytes,
    )
