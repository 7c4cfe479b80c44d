"""The schedule in the terminal: a line per role, a run of cells per task, legible without colour.

A cell shows the event that fills the largest share of it, or idle if the device waits for more than half of it.
Transfers are short, so they are always shown. Letters alone show everything that colours show.
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import groupby
from statistics import median
from textwrap import wrap

from rich.console import Group, RenderableType
from rich.text import Text

from ssdsl.lang.suggest import joined
from ssdsl.plan.plan import Phase
from ssdsl.record import Record, replace
from ssdsl.show.view import seconds
from ssdsl.simulate.timeline import Event, EventKind, Stream, Timeline

Span = tuple[float, float]
Roles = list[tuple[str, tuple[int, ...]]]  # a name, and the numbers of the rows that share a line


class GanttMark(Record):
    """The letter, word and style of a kind of event. The colours are those of the HTML page."""

    letter: str
    word: str
    style: str


MARKS = {
    EventKind.FORWARD: GanttMark("F", "forward", "#04122b on #5a98f7"),
    EventKind.BACKWARD: GanttMark("B", "backward", "#2e1a00 on #f2b04f"),
    EventKind.DGRAD: GanttMark("B", "backward, of inputs", "#2c0f02 on #ef8359"),
    EventKind.WGRAD: GanttMark("W", "backward, of weights", "#022720 on #3dbb9c"),
    EventKind.REDUCE: GanttMark("R", "reduce gradients", "#2a062c on #d07fd4"),
    EventKind.OPTIMIZER: GanttMark("O", "optimizer", "#0f141d on #95a2b8"),
    EventKind.TRANSFER: GanttMark("=", "transfer", "#120b38 on #a094f7"),
    EventKind.EXPOSED: GanttMark("~", "exposed", "#3b0410 on #f0768b"),
    EventKind.GATHER: GanttMark("G", "gather weights", "#06222c on #2293c3"),
    EventKind.AGAIN: GanttMark("A", "forward again", "#04122b on #7060f8"),
}
SENT = replace(MARKS[EventKind.TRANSFER], letter=">", word="sent")
RECEIVED = replace(MARKS[EventKind.TRANSFER], letter="<", word="received")
TASKS = tuple(map(EventKind, Phase))  # the kinds that a plan orders
EXPOSED = MARKS[EventKind.EXPOSED]
FILL, IDLE = "─", "·"
LEAST_CELLS = 16
NUMBERED = 3  # cells that a letter and a number of two digits take
NAMED = 3  # roles that a note names
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def gantt(timeline: Timeline, width: int, transfers: bool = False, window: Span | None = None) -> RenderableType:
    """The step, or its `window` in seconds, in so many columns; with `transfers`, a second line per role.

    Roles that do the same at the same time share a line. A task whose place in the order the compiler chose is in lower
    case and underlined. Raises ValueError if the window is outside the step.
    """
    span = _span(timeline, window)
    rows = _rows(timeline)
    roles = alike([row.name for row in timeline.rows], [tuple(map(_same, row)) for row in rows])
    side = min(max((len(name) for name, _ in roles), default=0), max(8, width // 4))
    cells = max(LEAST_CELLS, width - side - 1)
    directions = _directions(timeline) if transfers else {}
    lines, drawn = [_header(timeline, span, width)], set[Event]()
    for name, (number, *_) in roles:
        owners = _owners((e for e in rows[number] if e.stream is Stream.COMPUTE), span, cells)
        drawn.update(event for event in owners if event)
        lines.append(_line(shortened(name, side).ljust(side), _runs(owners, {})))
        if transfers:
            owners = _owners((e for e in rows[number] if e.stream is Stream.TRANSFER), span, cells, least=0.0)
            drawn.update(event for event in owners if event)
            lines.append(_line(" " * side, _runs(owners, directions, idle=" ")))
    lines += axis_lines(span, cells, side)
    lines += _legend(drawn, directions, width)
    shown = [e for _, (n, *_) in roles for e in rows[n] if e.stream is Stream.COMPUTE and _overlap(e, span) > 0]
    notes = [*_order_note(timeline, roles), *_dense_note(shown, drawn, span, cells)]
    return Group(*lines, *(_plain(line) for note in notes for line in wrap(note, width)))


def alike(names: Sequence[str], keys: Sequence[Hashable]) -> Roles:
    """The groups of equal keys, each with the name of its first and its numbers: `gpus_pp0 … x8`."""
    groups: dict[Hashable, list[int]] = {}
    for number, key in enumerate(keys):
        groups.setdefault(key, []).append(number)
    firsts = [(names[group[0]], group) for group in groups.values()]
    return [(name if len(group) == 1 else f"{name} … x{len(group)}", tuple(group)) for name, group in firsts]


def shortened(text: str, width: int) -> str:
    """A text of at most this length, cut in its middle."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


# -- time ------------------------------------------------------------------------------------------------------------


def _span(timeline: Timeline, window: Span | None) -> Span:
    end = max([timeline.step_s, *(e.end_s for e in timeline.events)]) or 1.0
    begin, end = (max(0.0, window[0]), min(end, window[1])) if window else (0.0, end)
    if not begin < end:
        raise ValueError(f"a window from {begin} s to {end} s shows nothing of a step of {timeline.step_s} s")
    return begin, end


def axis_lines(span: Span, cells: int, side: int) -> list[Text]:
    """A rule with ticks at round times, and the times below it; the unit stands in the column of the roles' names."""
    begin, end = span
    scale, unit = next((u for u in UNITS if end - begin >= 2 * u[0]), UNITS[-1])
    step = _tick_step(span, cells, scale)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    rule, labels = ["─"] * cells, [" "] * cells
    for tick in range(math.ceil(begin / scale / step - 1e-6), math.floor(end / scale / step + 1e-6) + 1):
        cell = round((tick * step * scale - begin) / (end - begin) * cells)
        text = f"{tick * step:.{decimals}f}"
        if cell < cells:
            rule[cell] = "┬"
        if cell + len(text) <= cells:
            labels[cell : cell + len(text)] = text
    return [_plain(" " * side + " " + "".join(rule), "dim"), _plain(unit.rjust(side) + " " + "".join(labels))]


def _tick_step(span: Span, cells: int, scale: float) -> float:
    """The smallest of 1, 2, 5, 10, ... units that leaves room for the longest label and a space between two ticks."""
    length, longest = (span[1] - span[0]) / scale, 0
    for power in range(math.floor(math.log10(length / cells)), 99):
        for digit in (1, 2, 5):
            step = digit * 10.0**power
            longest = len(f"{span[1] / scale:.{max(0, -power)}f}")
            if step / length * cells >= max(8, longest + 2):
                return step
    return length


# -- cells -----------------------------------------------------------------------------------------------------------


def _rows(timeline: Timeline) -> list[list[Event]]:
    rows: list[list[Event]] = [[] for _ in timeline.rows]
    for event in timeline.events:
        rows[event.row].append(event)
    return rows


def _same(event: Event) -> Hashable:
    """A key of an event: rows with equal keys are drawn alike. Times are rounded to a nanosecond."""
    times = round(event.start_s, 9), round(event.end_s, 9), round(event.communication_s, 9)
    return event.stream, event.kind, times, event.coordinate, event.from_plan


def _overlap(event: Event, span: Span) -> float:
    return min(event.end_s, span[1]) - max(event.start_s, span[0])


def _owners(events: Iterable[Event], span: Span, cells: int, least: float = 0.5) -> list[Event | None]:
    """The event that each cell shows; None if events fill less than the share `least` of the cell."""
    width = (span[1] - span[0]) / cells
    owners: list[Event | None] = [None] * cells
    largest, busy = [0.0] * cells, [0.0] * cells
    for event in events:
        first = max(0, math.floor((event.start_s - span[0]) / width))
        last = min(cells - 1, math.floor((event.end_s - span[0]) / width))
        for cell in range(first, last + 1):
            start = span[0] + cell * width
            share = _overlap(event, (start, start + width)) / width
            busy[cell] += share
            if share > largest[cell] + 1e-9:
                owners[cell], largest[cell] = event, share
    return [owner if share >= least - 1e-9 else None for owner, share in zip(owners, busy, strict=True)]


def _runs(
    owners: list[Event | None], directions: dict[Event, GanttMark], idle: str = IDLE
) -> Iterator[tuple[str, str]]:
    """The texts of a line with their styles: an event's letter, its number if it fits, and at the end what of it is
    exposed communication."""
    for _, same in groupby(owners, key=id):
        run = list(same)
        event = run[0]
        if event is None:
            yield idle * len(run), "dim"
            continue
        mark = directions.get(event, MARKS[event.kind])
        letter, style = mark.letter, mark.style
        if _is_completed(event):
            letter, style = letter.lower(), f"{style} underline"
        label = letter if event.kind is EventKind.EXPOSED else letter + micro_batch(event)
        label = label if len(label) <= len(run) else letter
        rest = len(run) - len(label)
        tail = min(rest, round(len(run) * event.communication_s / max(event.end_s - event.start_s, 1e-12)))
        yield label, f"{style} bold"
        yield FILL * (rest - tail), style
        yield EXPOSED.letter * tail, EXPOSED.style


def _is_completed(event: Event) -> bool:
    """Whether the compiler chose this task's place. Events after the tasks can have only one place, so they never
    count."""
    return event.kind in TASKS and not event.from_plan


def micro_batch(event: Event) -> str:
    """The number of the micro-batch: the index called m, or the first index."""
    values = dict(event.coordinate)
    return str(values.get("m", next(iter(values.values()), "")))


def _directions(timeline: Timeline) -> dict[Event, GanttMark]:
    """The marks of transfers: sent or received, as far as flows tell."""
    sent = {timeline.events[flow.source]: SENT for flow in timeline.flows}
    return sent | {timeline.events[flow.target]: RECEIVED for flow in timeline.flows}


# -- words -----------------------------------------------------------------------------------------------------------


def _header(timeline: Timeline, span: Span, width: int) -> Text:
    share = (span[1] - span[0]) / max(timeline.step_s, span[1])
    part = f", {seconds(span[0])} to {seconds(span[1])} of it ({share:.0%})" if share < 1 else ""
    bubble = "" if timeline.bubble is None else f"  bubble {timeline.bubble:.1%}"
    step = f"  step {seconds(timeline.step_s)}{bubble}{part}"
    return Text.assemble((shortened(timeline.title, max(8, width - len(step))), "bold"), step, no_wrap=True)


def _line(name: str, runs: Iterable[tuple[str, str]]) -> Text:
    return Text.assemble((name, "bold cyan"), " ", *runs, no_wrap=True, overflow="crop")


def _plain(text: str, style: str = "") -> Text:
    return Text(text.rstrip(), style, no_wrap=True, overflow="crop")


def _legend(drawn: set[Event], directions: dict[Event, GanttMark], width: int) -> list[Text]:
    """The lines that explain the letters in use."""
    marks = {directions.get(event, MARKS[event.kind]) for event in drawn}
    marks |= {EXPOSED} if any(e.communication_s for e in drawn) else set()
    entries = [(m.letter, m.word, f"{m.style} bold") for m in (*MARKS.values(), SENT, RECEIVED) if m in marks]
    lines = [Text(no_wrap=True, overflow="crop")]
    for letter, word, style in [*entries, (IDLE, "idle", "dim")]:
        entry = Text.assemble((letter, style), f" {word}")
        if lines[-1] and len(lines[-1]) + 2 + len(entry) > width:
            lines.append(Text(no_wrap=True, overflow="crop"))
        lines[-1].append("  " if lines[-1] else "").append(entry)
    return lines


def _order_note(timeline: Timeline, roles: Roles) -> Iterator[str]:
    """A note on how much of the order the plan states, and which tasks the compiler placed."""
    tasks = [e for e in timeline.events if e.kind in TASKS]
    completed = [e for e in tasks if not e.from_plan]
    if not completed:
        yield from [f"order: all {len(tasks):,} tasks from the plan"] * bool(tasks)
        return
    letters: dict[str, set[int]] = {}
    for event in completed:
        letters.setdefault(MARKS[event.kind].letter, set()).add(event.row)
    of = "; ".join(f"{letter} of {_names(rows, roles)}" for letter, rows in sorted(letters.items()))
    planned = len(tasks) - len(completed)
    yield (
        f"order: {planned:,} of {len(tasks):,} tasks from the plan, {len(completed):,} completed by the compiler "
        f"(lower case): {of}"
    )


def _names(rows: set[int], roles: Roles) -> str:
    names = [name for name, numbers in roles if rows.intersection(numbers)]
    if len(names) == len(roles) > 1:
        return "every role"
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return joined(names[:NAMED] + more, "and")


def _dense_note(events: list[Event], drawn: set[Event], span: Span, cells: int) -> Iterator[str]:
    """A note that tasks are too narrow to be numbered or drawn, with the window that would show them."""
    times = [e.end_s - e.start_s for e in events if e.kind in TASKS]
    cell = (span[1] - span[0]) / cells
    if times and (typical := median(times)) < 2 * cell:
        hidden = sum(e not in drawn for e in events)
        lost = f", and {hidden:,} of {len(events):,} are not drawn" if hidden else ""
        yield (
            f"dense: a cell is {seconds(cell)} and half of the tasks take no more than {seconds(typical)}{lost}; "
            f"a window of {seconds(typical * cells / NUMBERED)} shows each with its number"
        )
