"""Draws the timeline of a simulated step: its events, with the statements of the plan that made them."""

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby

from ssdsl.cluster.cluster import Cluster
from ssdsl.ir.comm import Transfer, functions_of
from ssdsl.ir.execute import ActionPart
from ssdsl.ir.program import At, BeginReduce, Compute, GatherParam, Program, Start, Traced, Travel, Wait
from ssdsl.ir.value import TimeIndex
from ssdsl.plan.plan import Phase
from ssdsl.record import replace
from ssdsl.simulate.exposed import ExposedPart, Exposure, Why
from ssdsl.simulate.price.costs import CommCost
from ssdsl.simulate.run import Epilogue, Interval, Trace
from ssdsl.simulate.stalls import delays_by_message
from ssdsl.simulate.timeline import (
    CommunicationTime,
    Event,
    EventKind,
    ExposedWait,
    Memory,
    MessageWait,
    Stream,
    Timeline,
    TimelineRow,
    TransferArrow,
)
from ssdsl.text.source import Source, Span


def draw(
    program: Program,
    source: Source,
    cluster: Cluster,
    trace: Trace,
    epilogues: list[Epilogue],
    exposed: list[Exposure],
    memory: list[Memory],
) -> Timeline:
    """The timeline of a trace; its rows are the roles that have actions."""
    statements = Statements(program, source)
    kept = [r for r, role in enumerate(program.roles) if role.actions]
    row_of = {r: k for k, r in enumerate(kept)}
    rows = []
    for r in kept:
        ranks = tuple(program.roles[r].submesh.ranks())
        rows.append(TimelineRow(program.roles[r].name, ranks, ", ".join(d.name for d in cluster.devices(ranks))))
    events: list[Event] = []
    number_of: dict[int, int] = {}  # the number of an event, by the number of its interval
    for n, x in enumerate(trace.intervals):
        if (event := _event(program, statements, row_of[x.role], x, epilogues[x.role])) is not None:
            number_of[n] = len(events)
            events.append(event)
    for r in kept:
        events += _epilogue(epilogues[r], row_of[r])
        events += _awaited(program, exposed[r], row_of[r])
    order = sorted(range(len(events)), key=lambda k: (events[k].start_s, events[k].row, k))
    place = {old: new for new, old in enumerate(order)}
    return Timeline(
        title=title_of(program, cluster),
        plan=source.name,
        text=source.text,
        step_s=max((e.end for e in epilogues), default=0.0),
        rows=tuple(rows),
        events=tuple(events[k] for k in order),
        flows=tuple(TransferArrow(place[number_of[a]], place[number_of[b]]) for a, b in trace.flows),
        memory=tuple(replace(memory[r], row=row_of[r]) for r in kept),
        params=tuple(program.plan.params.items()),
        waits=tuple(
            MessageWait(row_of[r], *carried, time_s)
            for r, delays in enumerate(delays_by_message(trace))
            for carried, time_s in delays.items()
            if r in row_of
        ),
        exposed=tuple(x for r in kept for x in _summed(exposed[r], row_of[r])),
        communication=tuple(x for r in kept for x in _communication(exposed[r], row_of[r])),
    )


def title_of(program: Program, cluster: Cluster) -> str:
    """The title of a timeline: the model and the cluster."""
    return f"{program.graph.name} on {cluster.name}"


def _event(program: Program, statements: "Statements", row: int, x: Interval, epilogue: Epilogue) -> Event | None:
    """The event of a task, a message, or gradients that are reduced or weights that are gathered while tasks run. None
    for all else: the epilogue has the events after the last task."""
    match x.action:
        case Compute() as task:
            return Event(
                row,
                Stream.COMPUTE,
                EventKind(task.phase),
                x.start,
                x.end,
                statements.name(task.function),
                at_indices(program.functions[task.function].time, task.at),
                x.cost.communication_s,
                lines=statements.lines(task),
                from_plan=task in program.stated,
                function=task.function,
            )
        case Start() as start:
            return _message_event(program, statements, row, x, start)
        case Travel() as travel:
            what, time = _carries(program, travel)
            size = sum(s.size_bytes for s in x.cost.sent)
            at = at_indices(time, travel.at)
            return Event(row, Stream.TRANSFER, EventKind.TRANSFER, x.start, x.end, what, at, 0.0, size)
        case BeginReduce() | GatherParam() if x.part is ActionPart.RECEIVED and x.start < min(x.end, epilogue.start):
            size, is_gather = sum(s.size_bytes for s in x.cost.sent), isinstance(x.action, GatherParam)
            kind, name = (EventKind.GATHER, "weights") if is_gather else (EventKind.REDUCE, "gradients")
            return Event(row, Stream.TRANSFER, kind, x.start, x.end, name, (), x.cost.time_s, size)
        case _:
            return None


def _message_event(program: Program, statements: "Statements", row: int, x: Interval, start: Start) -> Event:
    message = program.messages[start.message]
    what, time = _carries(program, start)
    source, target = message.ends(start.gradient)
    sender, _ = functions_of(message, start.gradient)
    phase = Phase.BACKWARD if start.gradient else Phase.FORWARD
    return Event(
        row,
        Stream.TRANSFER,
        EventKind.TRANSFER,
        x.start,
        x.end,
        f"{what} to {target}" if x.part is ActionPart.SENT else f"{what} from {source}",
        at_indices(time, start.at),
        0.0,
        x.cost.sent[0].size_bytes if x.cost.sent else 0,
        statements.lines(Compute(sender, start.at, phase)),
    )


def _carries(program: Program, action: Start | Wait | Travel) -> tuple[str, tuple[TimeIndex, ...]]:
    """The words for what a message, or an output in flight, carries, and its indices in time."""
    what, time = "signal", tuple[TimeIndex, ...]()
    if isinstance(action, Travel):
        function = program.functions[action.function]
        what, time = function.outputs[action.output].name.value, function.time
    elif isinstance(message := program.messages[action.message], Transfer):
        what, time = message.value, message.time
    return f"gradient of {what}" if action.gradient else what, time


def _awaited(program: Program, exposure: Exposure, row: int) -> Iterator[Event]:
    """The events of a row that waits for messages, outputs in flight, or weights in front of its tasks, one for each.
    What tasks and the epilogue wait for is in theirs."""
    waits = [x for x in exposure.exposed if isinstance(x.action, Start | Wait | Travel | GatherParam)]
    for action, found in groupby(waits, lambda x: x.action):
        times = [*found]
        start, end, inside = times[0].start, times[-1].end, tuple[tuple[str, int], ...]()
        if isinstance(action, Start | Wait | Travel):
            what, time = _carries(program, action)
            inside = at_indices(time, action.at)
        elif times[0].why is Why.CLUSTER:  # behind the update
            continue
        else:
            what = "weights"
        yield Event(row, Stream.COMPUTE, EventKind.EXPOSED, start, end, what, inside, end - start)


def _summed(exposure: Exposure, row: int) -> Iterator[ExposedWait]:
    """What a row waits for, each message and function once, with its seconds in the step."""
    found: dict[tuple[Traced, Why], float] = {}
    for x in exposure.exposed:
        action = x.action._replace(at=()) if isinstance(x.action, Compute | Start | Wait | Travel) else x.action
        found[action, x.why] = found.get((action, x.why), 0.0) + x.time_s
    for (action, why), time_s in found.items():
        yield ExposedWait(row, action, why, time_s)


KINDS = {ExposedPart.MESSAGES: "send", ExposedPart.WEIGHTS: "all_gather"}  # of what waits for a free link or buffer


def _communication(exposure: Exposure, row: int) -> Iterator[CommunicationTime]:
    """What the links of a row carry, and the times when it waits for communication that has not started yet."""
    for carried in exposure.carried:
        if carried.end > carried.start:
            yield CommunicationTime(row, carried.start, carried.end, _parts(carried.sent))
    for x, start, end in exposure.not_started():
        yield CommunicationTime(row, start, end, ((KINDS.get(x.part, "all_reduce"), 1.0, 0),))


def _parts(sent: Iterable[CommCost]) -> tuple[tuple[str, float, int], ...]:
    """The kinds of communication with their shares of its time, the first that is sent first."""
    by_kind: dict[tuple[str, int], float] = {}
    for cost in sent:
        by_kind[cost.kind, cost.ranks] = by_kind.get((cost.kind, cost.ranks), 0.0) + cost.time_s
    total = sum(by_kind.values())
    return tuple((kind, time_s / total if total else 1 / len(by_kind), n) for (kind, n), time_s in by_kind.items())


def at_indices(time: tuple[TimeIndex, ...], at: At) -> tuple[tuple[str, int], ...]:
    """Coordinates in time with the names of their indices."""
    return tuple(zip((t.name for t in time), at, strict=True))


def _epilogue(epilogue: Epilogue, row: int) -> Iterator[Event]:
    for start, end in epilogue.reduces:
        yield Event(row, Stream.COMPUTE, EventKind.REDUCE, start, end, "gradients", (), end - start)
    if epilogue.end > epilogue.updates:
        gathered = epilogue.gather_s
        yield Event(row, Stream.COMPUTE, EventKind.OPTIMIZER, epilogue.updates, epilogue.end, "optimizer", (), gathered)


class Statements:
    """The names of a program's tasks, and the lines of the plan that made them."""

    def __init__(self, program: Program, source: Source) -> None:
        self.program, self.source = program, source
        self.paths = {o.name: o.path for o in program.graph.operators}
        self.name = cache(self._name)
        self._of_function = cache(self._function_lines)
        self._line = cache(self._line_of)

    def lines(self, task: Compute) -> tuple[int, ...]:
        """The lines of the plan that cut, place or recompute the task's operators, or give the task its place."""
        spans = self.program.stated.get(task, ())
        lines = {line for span in spans if (line := self._line(span))}
        return tuple(sorted({*self._of_function(task.function), *lines}))

    def _name(self, number: int) -> str:
        operators = tuple(self.program.functions[number].operators())
        named = [p for op in (operators[0], operators[-1]) if (p := self.paths[op.operator])]
        parts = self.program.plan.of(operators[0].operator).selected
        return (" ... ".join(dict.fromkeys(named)) or "the model itself") + parts

    def _function_lines(self, number: int) -> frozenset[int]:
        plan = self.program.plan
        spans: dict[Span, None] = {}
        inside = [op.operator for op in self.program.functions[number].operators()]
        for record in map(plan.of, inside):
            checkpoint = () if record.checkpoint is None else (record.checkpoint,)
            spans.update(dict.fromkeys(said.span for said in (record.home, *record.indices, *checkpoint)))
        return frozenset(line for span in spans if (line := self._line(span)))

    def _line_of(self, span: Span) -> int:
        """The number of a line in the plan's own text; 0 for one in another file."""
        return self.source.line_column(span.start)[0] if span.source.name == self.source.name else 0
