"""Memory over the step: tables of the peaks and their parts, and a curve per role in the terminal."""

import math
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from ssdsl.show.charts.gantt import LEAST_CELLS, alike, axis_lines, shortened
from ssdsl.show.view import Column, ColumnKind, View, size
from ssdsl.simulate.timeline import Memory, Timeline

PEAKS = (
    Column("role", style="bold cyan", fold=True),
    Column("devices", ColumnKind.COUNT),
    Column("peak", ColumnKind.BYTES, "bold"),
    Column("at", ColumnKind.SECONDS),
    Column("capacity", ColumnKind.BYTES),
    Column("of capacity", ColumnKind.SHARE),
)
ALWAYS = 3  # parts of a peak that are shown at any width
BLOCKS = " ▁▂▃▄▅▆▇█"
CURVE, TOO_HIGH = "", "#ff4d4d"  # no colours of events
PEAK = "▼"


def memory_views(timeline: Timeline) -> tuple[View, ...]:
    """The peaks of each role's devices, and their parts as columns; roles with the same memory share a row."""
    return (peaks_view(timeline), parts_view(timeline)) if timeline.memory else ()


def peaks_view(timeline: Timeline) -> View:
    """The peak memory of a device of each role, its time, and its share of the capacity."""
    rows = tuple(
        (name, devices, m.peak_bytes, m.peak_s, m.capacity_bytes, _share(m)) for name, devices, m in _groups(timeline)
    )
    over = sum(_is_over(m) for m in timeline.memory)
    notes = (f"{over} of {len(timeline.memory)} roles need more than their devices have",) if over else ()
    return View("peak memory of a device", PEAKS, rows, notes)


def parts_view(timeline: Timeline) -> View:
    """The parts of each role's peak as columns; a cell is empty if the role has no such part.

    In a narrow terminal the smallest parts are left out.
    """
    groups = _groups(timeline)
    names = list(dict.fromkeys(name for _, _, m in groups for name, _ in m.peak_parts))
    largest = {name: max(dict(m.peak_parts).get(name, 0) for _, _, m in groups) for name in names}
    drops = {name: drop for drop, name in enumerate(sorted(names, key=lambda n: -largest[n])[ALWAYS:], 1)}
    columns = (PEAKS[0], *(Column(name, ColumnKind.BYTES, drop=drops.get(name, 0)) for name in names))
    rows = tuple((role, *(dict(m.peak_parts).get(name) for name in names)) for role, _, m in groups)
    return View("what the peak is made of", columns, rows)


def memory_curve(timeline: Timeline, width: int, height: int = 4) -> RenderableType:
    """A curve of so many lines per role, all with one scale; each cell shows the most memory in its time."""
    groups = _groups(timeline)
    top = max((m.peak_bytes for m in timeline.memory), default=0) or 1
    longest = max((len(name) for name, _, _ in groups), default=0)
    side = max(len(size(top)), min(longest, width // 4))
    cells = max(LEAST_CELLS, width - side - 1)
    end = max([timeline.step_s, *(m.times_s[-1] for m in timeline.memory if m.times_s)]) or 1.0
    lines = [Text(shortened(f"{timeline.title}: memory of a device", width), "bold", no_wrap=True)]
    for name, _, memory in groups:
        labels = [shortened(name, side), *[size(top), *[""] * (height - 2), "0"][:height]]
        pictures = [_peak_line(memory, end, cells), *_curve(memory, end, top, cells, height)]
        style = TOO_HIGH if _is_over(memory) else CURVE
        for number, (label, picture) in enumerate(zip(labels, pictures, strict=True)):
            label = label.rjust(side) if number else label.ljust(side)
            styles = ("", "") if number else ("bold cyan", "bold")
            lines.append(Text.assemble((label, styles[0]), " ", (picture, styles[1] or style), no_wrap=True))
    return Group(*lines, *axis_lines((0.0, end), cells, side))


def _groups(timeline: Timeline) -> list[tuple[str, int, Memory]]:
    """Roles with equal memory as one, with the number of their devices."""
    memory = timeline.memory
    keys = [(m.size_bytes, tuple(round(t, 9) for t in m.times_s), m.peak_parts, m.capacity_bytes) for m in memory]
    return [
        (name, sum(len(timeline.rows[memory[n].row].ranks) for n in numbers), memory[numbers[0]])
        for name, numbers in alike([timeline.rows[m.row].name for m in memory], keys)
    ]


def _share(memory: Memory) -> float | None:
    return memory.peak_bytes / memory.capacity_bytes if memory.capacity_bytes else None


def _is_over(memory: Memory) -> bool:
    return (_share(memory) or 0) > 1


def _peak_line(memory: Memory, end: float, cells: int) -> str:
    """A mark over the peak, with its figures on the side that has room."""
    cell = min(cells - 1, int(memory.peak_s / end * cells))
    share = _share(memory)
    of = f", {share:.0%} of {size(memory.capacity_bytes or 0)}" if share is not None else ""
    text = f"{size(memory.peak_bytes)}{of}"
    if cell + 2 + len(text) <= cells:
        return f"{' ' * cell}{PEAK} {text}"
    return f"{text} {PEAK}".rjust(cell + 1)


def _curve(memory: Memory, end: float, top: int, cells: int, height: int) -> Iterator[str]:
    """The lines of the curve, from the top; memory that is not zero fills at least an eighth of a line."""
    eighths = [round(v / top * 8 * height) or int(v > 0) for v in _largest(memory, end, cells)]
    for line in reversed(range(height)):
        yield "".join(BLOCKS[min(8, max(0, e - 8 * line))] for e in eighths)


def _largest(memory: Memory, end: float, cells: int) -> list[int]:
    """The most memory in each cell's time."""
    largest = [0] * cells
    until = (*memory.times_s[1:], end)
    for start, stop, held in zip(memory.times_s, until, memory.size_bytes, strict=True):
        first = min(cells - 1, int(start / end * cells))
        last = max(first + 1, min(cells, math.ceil(stop / end * cells)))
        for cell in range(first, last):
            largest[cell] = max(largest[cell], held)
    return largest
