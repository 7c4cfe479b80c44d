"""The blocks of bench/results/papers.md: pictures and tables, each behind a mark of its own."""

import re
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

from rich.console import Console

from bench.papers.comparisons import Comparison, Settings
from bench.papers.search import Found, Tried
from ssdsl.show.charts.gantt import gantt
from ssdsl.show.view import seconds, size
from ssdsl.simulate.report import Report

PAGE = Path(__file__).resolve().parents[1] / "results" / "papers.md"
HEAD = "| strategy | setting | step | bubble | peak memory | traffic | between nodes | plan is faster |"
FOUND = "found"  # the row of what is found for sketches
WIDTH = 100


class NoMark(Exception):
    """The page has no place for a block."""


def with_block(text: str, mark: str, block: str) -> str:
    """The page with what stands behind a mark replaced: a fenced block, or the lines up to the next empty one."""
    notes = rf"<!-- {re.escape(mark)} -->\n(?:<!-- [^\n]* -->\n)*"
    place = re.compile(rf"({notes})(?:```\w*\n.*?^```\n|(?:[^\n]+\n)*)", re.DOTALL | re.MULTILINE)
    if not place.search(text):
        raise NoMark(f"{PAGE.name} has no line <!-- {mark} -->")
    return place.sub(lambda found: found[1] + block, text, count=1)


def picture_mark(comparison: Comparison) -> str:
    return f"picture: {comparison.name}"


def picture_block(report: Report) -> str:
    out = StringIO()
    Console(file=out, width=WIDTH, color_system=None).print(gantt(report.timeline, WIDTH))
    lines = "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
    return f"```text\n{lines}```\n"


def table_mark(comparison: Comparison, devices: int) -> str:
    return f"table: {comparison.name} on {devices}"


def table_block(comparison: Comparison, found: Mapping[str, Found | None]) -> str:
    """A row for each strategy and one for what is found; the last column is its step over that of the paper's plan,
    where both fit."""
    plan = found[comparison.strategies[0].name]
    names = [*((s.name, s.plan) for s in comparison.strategies), (FOUND, comparison.sketches[0])]
    rows = [_row(name, refused, found[name], plan) for name, refused in names]
    return "".join(f"{line}\n" for line in (HEAD, "|---" * HEAD.count(" | ") + "|---|", *rows))


def _row(name: str, plan: str, found: Found | None, first: Found | None) -> str:
    """The row of what was found; of a `plan` that is refused in all its settings."""
    if found is None:
        return f"| {name}: `{plan}` | {'nothing' if name == FOUND else 'refused'} | – | – | – | – | – | – |"
    best = found.best
    cells = [
        f"{name}: `{found.plan}`",
        f"`{_settings(best.settings)}`{'' if name == FOUND else f', of {found.tried}'}",
        seconds(best.step_s),
        f"{abs(best.bubble):.1%}",
        _memory(best),
        size(best.traffic_bytes),
        size(best.between_nodes_bytes),
        _ratio(best, first.best if first is not None else best),
    ]
    return f"| {' | '.join(cells)} |"


def _settings(settings: Settings) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


def _memory(tried: Tried) -> str:
    if tried.fits:
        return size(tried.peak_bytes)
    return f"{size(tried.peak_bytes)}, out of memory by {size(tried.peak_bytes - tried.capacity_bytes)}"


def _ratio(tried: Tried, plan: Tried) -> str:
    return f"{tried.step_s / plan.step_s:.2f}x" if tried.fits and plan.fits and tried is not plan else "–"
