"""A timeline as one self-contained HTML file: its data as columns, drawn by the scripts in `html/`.

Nothing from a plan or a model becomes markup: the data is JSON in a script element, and the scripts write it with
`textContent` or on a canvas. The page's content security policy forbids network access.
"""

import html
import json
import re
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

from ssdsl.lang.assets import grammar_text
from ssdsl.plan.regions import ranges
from ssdsl.show.view import View, as_json
from ssdsl.simulate.timeline import MEMORY_PARTS, Event, EventKind, Memory, Stream, Timeline, TimelineRow

FOLDER = Path(__file__).resolve().parent / "html"
SCRIPTS = """
    elements data scale theme lanes columns events flows axis tracks memory plan tables tooltip header input page
""".split()
KEYWORD = re.compile(r'"([a-z]+)"')
SLOT = re.compile(r"\{\{(\w+)\}\}")
DIGITS = 10  # decimals of a time in seconds: a tenth of a nanosecond


def timeline_html(timeline: Timeline, by_line: View | None = None, exposed: View | None = None) -> str:
    """The page as text, to be written to a file and opened in a browser; with the tables of `exposed_view` and
    `by_line_view` below the plan."""
    tables = {"byLine": _table(timeline, by_line), "exposed": _table(timeline, exposed)}
    return filled("page", timeline.title, SCRIPTS, {**timeline_data(timeline), **tables})


def timeline_data(timeline: Timeline) -> dict[str, Any]:
    """The data that the scripts draw: what an event has as a list for all events, and the rest of the timeline."""
    return {
        "title": timeline.title,
        "plan": timeline.plan,
        "text": timeline.text,
        "keywords": keywords(),
        "params": timeline.params,
        "step": timeline.step_s,
        "bubble": timeline.bubble,
        "kinds": list(EventKind),
        "rows": [_row(row) for row in timeline.rows],
        "events": _events(timeline.events),
        "flows": {
            "source": [flow.source for flow in timeline.flows],
            "target": [flow.target for flow in timeline.flows],
        },
        "memory": [_memory(memory) for memory in timeline.memory],
    }


def filled(page: str, title: str, scripts: Iterable[str], data: dict[str, Any]) -> str:
    """A page of `html/` with its style, these scripts and this data; the data cannot end the script element around
    it."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    slots = {
        "title": html.escape(title),
        "style": _text("colours.css") + _text(f"{page}.css"),
        "script": "\n".join(_text(f"{name}.js") for name in scripts),
        "data": text.replace("<", "\\u003c"),
    }
    return SLOT.sub(lambda slot: slots[slot[1]], _text(f"{page}.html"))


def keywords() -> list[str]:
    """The words of the language, as its grammar has them."""
    return sorted(set(KEYWORD.findall(grammar_text())))


def _text(name: str) -> str:
    return (FOLDER / name).read_text("utf-8")


def _row(row: TimelineRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "devices": len(row.ranks),
        "ranks": ", ".join(ranges(row.ranks, "–")),
        "device": row.device,
    }


def _events(events: tuple[Event, ...]) -> dict[str, Any]:
    """A list per field. Names, coordinates and lines repeat, so they are numbers in lists of the distinct ones."""
    kinds, streams = list(EventKind), list(Stream)
    names, different_names = _numbered(event.name for event in events)
    coordinates, different_coordinates = _numbered(event.coordinate for event in events)
    lines, different_lines = _numbered(event.lines for event in events)
    return {
        "row": [event.row for event in events],
        "stream": [streams.index(event.stream) for event in events],
        "kind": [kinds.index(event.kind) for event in events],
        "start": [round(event.start_s, DIGITS) for event in events],
        "end": [round(event.end_s, DIGITS) for event in events],
        "name": names,
        "coordinate": coordinates,
        "communication": [round(event.communication_s, DIGITS) for event in events],
        "bytes": [event.size_bytes for event in events],
        "lines": lines,
        "fromPlan": [int(event.from_plan) for event in events],
        "names": different_names,
        "coordinates": different_coordinates,
        "lineSets": different_lines,
    }


def _memory(memory: Memory) -> dict[str, Any]:
    return {
        "row": memory.row,
        "times": [round(time, DIGITS) for time in memory.times_s],
        "bytes": memory.size_bytes,
        "peakTime": memory.peak_s,
        "peakBytes": memory.peak_bytes,
        "parts": memory.peak_parts,
        "changes": _changes(memory),
        "capacity": memory.capacity_bytes,
    }


def _changes(memory: Memory) -> list[tuple[str, list[int], list[int]]]:
    """For each part of memory, from below, the numbers of the times at which its bytes change, and these bytes."""
    numbers = {time: number for number, time in enumerate(memory.times_s)}
    held = dict.fromkeys(MEMORY_PARTS, 0)
    found: dict[str, dict[int, int]] = {part: {} for part in MEMORY_PARTS}
    for time, size, part in memory.changes:
        held[part] += size
        found[part][numbers[time]] = held[part]
    return [(part, [*sizes], [*sizes.values()]) for part, sizes in found.items() if any(sizes.values())]


def _table(timeline: Timeline, view: View | None) -> dict[str, Any] | None:
    """The rows of a table with statements, each with its line number if it is a line of this plan, else 0."""
    if view is None:
        return None
    own = re.compile(rf"{re.escape(Path(timeline.plan).name)}:(\d+): (.*)")
    rows = []
    for row in as_json(view):
        found = own.fullmatch(str(row["statement"]))
        line, text = (int(found[1]), found[2]) if found else (0, row["statement"])
        rows.append({**row, "line": line, "statement": text})
    return {"rows": rows, "notes": view.notes}


def _numbered(values: Iterable[Hashable]) -> tuple[list[int], list[Any]]:
    """The number of each value among the distinct ones, and these in the order in which they are first seen."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values], list(numbers)
