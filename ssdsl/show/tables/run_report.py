"""`ssdsl run`: the tables at its end, with loss per step, step time, communication and memory."""

from collections.abc import Iterator

from ssdsl.lang.suggest import counted
from ssdsl.run.results import RankResult, RunResult
from ssdsl.show.view import Column, ColumnKind, View, seconds

SHOWN_STEPS = 12


def run_views(result: RunResult) -> tuple[View, ...]:
    """The tables of a finished run."""
    return steps_view(result), communication_view(result), processes_view(result)


def steps_view(result: RunResult) -> View:
    """The loss and the time of each step; if there are many, of the first and the last ones."""
    columns = [
        Column("step", ColumnKind.COUNT),
        Column("loss", ColumnKind.LOSS, "bold"),
        Column("time", ColumnKind.SECONDS),
    ]
    numbered = enumerate(zip(result.losses, result.step_s, strict=True), result.first)
    rows: list[tuple[int | str | float, ...]] = [(step, loss, time) for step, (loss, time) in numbered]
    if result.evaluated:
        columns.append(Column("evaluation", ColumnKind.LOSS))
        rows = [(*row, result.evaluated.get(int(row[0]), "")) for row in rows]
    half = SHOWN_STEPS // 2
    shown = rows
    if len(rows) > SHOWN_STEPS + 1:
        shown = [*rows[:half], ("...",) * len(columns), *rows[-half:]]
    notes = f"median step time {seconds(result.median_step_s)}, the first step left out", *_compiled(result)
    return View("training", tuple(columns), tuple(shown), notes)


def _compiled(result: RunResult) -> Iterator[str]:
    """Notes on the runs of operators that torch has compiled, or has loaded from its cache, in the process that
    compiled most; and on those that it has not, with the reason."""
    slowest = max((rank.runs for rank in result.ranks), key=lambda runs: (runs.compiled, runs.took_s))
    counts = {"compiled": slowest.compiled, "loaded": slowest.loaded}
    if said := " and ".join(f"{word} {counted(count, 'run')} of operators" for word, count in counts.items() if count):
        yield f"{said} in {seconds(slowest.took_s)}, in the first step"
    reasons = {name: reason for rank in result.ranks for name, reason in rank.runs.refused.items()}
    yield from (f"`{name}` runs operator by operator: {reason}" for name, reason in reasons.items())


def communication_view(result: RunResult) -> View:
    """The calls and bytes of each collective in one step."""
    columns = (
        Column("communication", style="bold cyan"),
        Column("calls", ColumnKind.COUNT),
        Column("bytes", ColumnKind.BYTES),
        Column("bytes of all processes", ColumnKind.BYTES),
    )
    names = sorted({name for rank in result.ranks for name in rank.comm})
    rows = tuple(_communication(result, name) for name in names)
    notes = () if rows else ("the processes did not communicate",)
    return View("communication per step of the busiest process", columns, rows, notes)


def _communication(result: RunResult, name: str) -> tuple[str | int | float, ...]:
    traffic = [rank.comm[name] for rank in result.ranks if name in rank.comm]
    calls = max(t.calls for t in traffic) / result.steps
    sizes = [t.bytes / result.steps for t in traffic]
    return name, int(calls) if calls == int(calls) else round(calls, 1), max(sizes), sum(sizes)


def processes_view(result: RunResult) -> View:
    """Each process's role, peak memory and time."""
    columns = (
        Column("rank", ColumnKind.COUNT),
        Column("role", style="bold cyan"),
        Column("peak memory", ColumnKind.BYTES),
        Column("median step", ColumnKind.SECONDS),
        Column("communication per step", ColumnKind.BYTES),
    )
    return View("processes", columns, tuple(_process(rank, result.steps) for rank in result.ranks))


def _process(rank: RankResult, steps: int) -> tuple[str | int | float, ...]:
    times = sorted(rank.step_s[1:] or rank.step_s)
    moved = sum(t.bytes for t in rank.comm.values()) / steps
    return rank.rank, rank.role, rank.peak_bytes, times[len(times) // 2] if times else 0.0, moved
