"""The timeline of a simulated step: its events with the statements that made them."""

from dataclasses import replace
from functools import cache

from ssdsl.cluster.cluster import Cluster
from ssdsl.lower.schedule import Schedule, Task
from ssdsl.plan.plan import Phase
from ssdsl.simulate.costs import ranks_of
from ssdsl.simulate.run import Ran, Trace
from ssdsl.simulate.timeline import Event, Flow, Kind, Memory, Row, Stream, Timeline
from ssdsl.text.source import Source, Span

KINDS = {
    Phase.FORWARD: Kind.FORWARD,
    Phase.BACKWARD: Kind.BACKWARD,
    Phase.DGRAD: Kind.DGRAD,
    Phase.WGRAD: Kind.WGRAD,
}


def draw(
    schedule: Schedule, source: Source, cluster: Cluster, trace: Trace, memory: list[Memory], step: float
) -> Timeline:
    """Rows are the roles that have tasks."""
    statements = Statements(schedule, source)
    kept = [r for r, role in enumerate(schedule.roles) if role.tasks]
    row_of = {r: k for k, r in enumerate(kept)}
    rows = []
    for r in kept:
        ranks = ranks_of(schedule, schedule.roles[r])
        rows.append(Row(schedule.roles[r].name, ranks, ", ".join(d.name for d in cluster.devices(ranks))))
    events = [_event(schedule, statements, row_of[x.role], x) for x in trace.ran]
    for r in kept:
        events += _tail(trace, r, row_of[r])
    order = sorted(range(len(events)), key=lambda k: (events[k].start_s, events[k].row, k))
    place = {old: new for new, old in enumerate(order)}
    return Timeline(
        title=f"{schedule.graph.name} on {cluster.name}",
        plan=source.name,
        text=source.text,
        step_s=step,
        rows=tuple(rows),
        events=tuple(events[k] for k in order),
        flows=tuple(Flow(place[a], place[b]) for a, b in trace.flows),
        memory=tuple(replace(memory[r], row=row_of[r]) for r in kept),
    )


def _event(schedule: Schedule, statements: "Statements", row: int, ran: Ran) -> Event:
    task = ran.task
    block = schedule.blocks[task.block]
    coordinate = tuple(zip((t.name for t in block.time), task.coordinate, strict=False))
    if task.transfer is None:
        return Event(
            row,
            Stream.COMPUTE,
            KINDS[task.phase],
            ran.start,
            ran.end,
            statements.name(task.block),
            coordinate,
            ran.cost.communication_s,
            lines=statements.lines(task),
            from_plan=task in schedule.stated,
        )
    transfer = schedule.transfers[task.transfer]
    what = transfer.value or "signal"
    size = ran.cost.messages[0].size_bytes if ran.cost.messages else 0
    ends = transfer.ends(task.phase)
    gradient = "" if task.phase is Phase.FORWARD else "gradient of "
    name = f"{gradient}{what} to {ends[1]}" if ran.sends else f"{gradient}{what} from {ends[0]}"
    lines = statements.lines(Task(task.block, task.coordinate, task.phase))
    return Event(row, Stream.TRANSFER, Kind.TRANSFER, ran.start, ran.end, name, coordinate, 0.0, size, lines)


def _tail(trace: Trace, r: int, row: int) -> list[Event]:
    ended = trace.ended[r]
    events = []
    if ended.reduced > ended.start:
        length = ended.reduced - ended.start
        events.append(Event(row, Stream.COMPUTE, Kind.REDUCE, ended.start, ended.reduced, "gradients", (), length))
    if ended.end > ended.reduced:
        gathered = ended.tail.optimizer.communication_s
        events.append(Event(row, Stream.COMPUTE, Kind.OPTIMIZER, ended.reduced, ended.end, "optimizer", (), gathered))
    return events


class Statements:
    """What the tasks of a schedule are called, and which lines of the plan made them."""

    def __init__(self, schedule: Schedule, source: Source) -> None:
        self.schedule, self.source = schedule, source
        self.paths = {o.name: o.path for o in schedule.graph.operators}
        self.name = cache(self._name)
        self._of_block = cache(self._block_lines)
        self._line = cache(self._line_of)

    def lines(self, task: Task) -> tuple[int, ...]:
        """Lines of the plan: how the task's operators are cut and placed, and where its order comes from."""
        spans = self.schedule.stated.get(task, ())
        lines = {line for span in spans if (line := self._line(span))}
        return tuple(sorted({*self._of_block(task.block), *lines}))

    def _name(self, number: int) -> str:
        block = self.schedule.blocks[number]
        named = [p for o in (block.operators[0], block.operators[-1]) if (p := self.paths[o])]
        return " ... ".join(dict.fromkeys(named)) or "the loss"

    def _block_lines(self, number: int) -> frozenset[int]:
        plan = self.schedule.plan
        spans: dict[Span, None] = {}
        inside = self.schedule.blocks[number].operators
        for name in inside:
            spans[plan.placements[name].span] = None
            spans.update(dict.fromkeys(i.span for i in plan.indices.get(name, ())))
        spans.update(dict.fromkeys(r.span for r in plan.recomputes if any(not u.isdisjoint(inside) for u in r.units)))
        return frozenset(line for span in spans if (line := self._line(span)))

    def _line_of(self, span: Span) -> int:
        """The line in the plan's own text, 0 for one in another file."""
        return self.source.line_column(span.start)[0] if span.source.name == self.source.name else 0
