"""Times of a recorded run: the costs of its tasks, and its last step as a timeline."""

import re
from statistics import mean, median

from ssdsl.ir.program import Compute, Program
from ssdsl.plan.plan import Phase
from ssdsl.run.results import Recorded, RunResult
from ssdsl.simulate.draw_timeline import Statements, at_indices
from ssdsl.simulate.profile.measured import Times
from ssdsl.simulate.timeline import Event, EventKind, Stream, Timeline, TimelineRow
from ssdsl.text.source import Source

PHASES = {phase.letter: phase for phase in Phase}


def measured_times(program: Program, result: RunResult) -> Times:
    """The median time of every task over micro-batches, ranks and all steps but the first, without waiting for other
    ranks. `TF`, `TB`, `TW` and `Tcomm` are means, for other programs with the same stages."""
    tasks: dict[str, list[float]] = {}
    ends: dict[str, dict[str, list[float]]] = {"reduce": {}, "optimizer": {}}
    transfers: dict[str, float] = {}
    for rank in result.ranks:
        plain = [step for n, step in enumerate(rank.recorded) if n not in rank.clocked]
        for step in plain[1:] or plain:
            in_step = dict.fromkeys(ends, 0.0)  # reductions and gathers run one after another
            for entry in step:
                time = entry.end_s - entry.start_s - entry.waited_s
                if entry.name in ends:
                    in_step[entry.name] += time
                elif (task := _task(entry.name)) is not None:
                    tasks.setdefault(f"{program.functions[task.function].name}.{task.phase}", []).append(time)
            for name, time in in_step.items():
                ends[name].setdefault(rank.role, []).append(time)
        for name, time in rank.transfers_s.items():
            transfers[name] = max(time, transfers.get(name, 0.0))
    middle = {name: median(times) for name, times in sorted(tasks.items())}

    def average(*phases: Phase) -> float:
        found = [t for name, t in middle.items() if name.rpartition(".")[2] in phases]
        return mean(found) if found else 0.0

    return Times(
        average(Phase.FORWARD),
        average(Phase.BACKWARD, Phase.DGRAD),
        average(Phase.WGRAD),
        mean(transfers.values()) if transfers else 0.0,
        middle,
        transfers,
        {role: median(times) for role, times in ends["reduce"].items()},
        {role: median(times) for role, times in ends["optimizer"].items()},
    )


def measured_timeline(program: Program, source: Source, result: RunResult) -> Timeline:
    """The last step, with a row per rank. The time that a task waited for others is cut off at its start."""
    statements = Statements(program, source)
    last = [(rank, rank.recorded[-1]) for rank in result.ranks if rank.recorded]
    begin = min(entry.start_s for _, step in last for entry in step)
    events = []
    for row, (_, step) in enumerate(last):
        events += [e for entry in step if (e := _event(program, statements, row, entry, begin)) is not None]
    events.sort(key=lambda e: (e.start_s, e.row))
    return Timeline(
        f"{program.graph.name}, measured",
        source.name,
        source.text,
        max((e.end_s for e in events), default=0.0),
        tuple(TimelineRow(f"{rank.role} rank {rank.rank}", (rank.rank,), "measured") for rank, _ in last),
        tuple(events),
        params=tuple(program.plan.params.items()),
    )


def _event(program: Program, statements: Statements, row: int, entry: Recorded, begin: float) -> Event | None:
    start, end = entry.start_s + entry.waited_s - begin, entry.end_s - begin
    if entry.name in ("reduce", "optimizer"):
        kind = EventKind.REDUCE if entry.name == "reduce" else EventKind.OPTIMIZER
        return Event(row, Stream.COMPUTE, kind, start, end, entry.name)
    if (task := _task(entry.name)) is None:
        return None  # posting a transfer takes no time; the transfer itself is not recorded
    return Event(
        row,
        Stream.COMPUTE,
        EventKind(task.phase),
        start,
        end,
        statements.name(task.function),
        at_indices(program.functions[task.function].time, task.at),
        lines=statements.lines(task),
        from_plan=task in program.stated,
        function=task.function,
    )


def _task(name: str) -> Compute | None:
    """A task by the name that the program writes; None for a message."""
    found = re.fullmatch(r"([FABDW])(\d+)\[(.*)\]", name)
    if found is None:
        return None
    letter, number, at = found.groups()
    return Compute(int(number), tuple(int(c) for c in at.split(",") if c.strip()), PHASES[letter])
