"""The picture of the first page: a simulated step of its plan, in HTML that fits any width.

The page of `ssdsl simulate --html` for the same step stands beside it.
"""

import re
from html import escape
from pathlib import Path

from ssdsl.plan_report import compile_plan
from ssdsl.record import replace
from ssdsl.show.charts.gantt import MARKS, TASKS, micro_batch
from ssdsl.show.charts.timeline_html import timeline_html
from ssdsl.show.view import seconds
from ssdsl.simulate.report import Report
from ssdsl.simulate.timeline import Event, EventKind, Stream, Timeline

MODEL, CLUSTER = "gpt:350m,dtype=bf16", "a100x1024"
COLOURS = Path(__file__).parents[2] / "ssdsl" / "show" / "charts" / "html" / "colours.css"
LINK = '<a href="timeline.html">Look into it</a>: zoom, memory, and the line of the plan behind each box.'
DARK = "@media (prefers-color-scheme: dark)"


def step_of(plan: Path) -> Report:
    """A simulated step of a plan, which was proved before."""
    return compile_plan(plan, MODEL).simulate(CLUSTER).report


def page(report: Report) -> str:
    """The page of `ssdsl simulate --html`."""
    timeline = report.timeline
    return timeline_html(replace(timeline, plan=Path(timeline.plan).name))


def picture(report: Report) -> str:
    """The rows of the step, a legend and a caption, as HTML."""
    timeline = report.timeline
    shown = [e for e in timeline.events if e.stream is Stream.COMPUTE and e.kind is not EventKind.EXPOSED]
    kinds = [kind for kind in MARKS if any(e.kind is kind for e in shown)]
    rows = [_row(timeline, number, shown) for number in range(len(timeline.rows))]
    legend = "".join(f'<span><i class="{kind}"></i>{MARKS[kind].word}</span>' for kind in kinds)
    caption = (
        f"A step of GPT-2 with 350 million parameters on {report.size} A100, in {seconds(report.step_s)}, "
        f"{report.bubble:.0%} of it a bubble. Simulated on a laptop when this page was built."
    )
    return "\n".join(
        [
            f'<figure class="timeline" role="img" aria-label="{escape(caption)}">',
            *rows,
            f'<div class="row"><b></b><div class="axis">{_axis(timeline)}</div></div>',
            f'<div class="legend">{legend}<span><i></i>idle</span></div>',
            f"<figcaption>{escape(caption)} {LINK}</figcaption>",
            "</figure>",
        ]
    )


def colours() -> str:
    """The colours of the tool's own pages as CSS, in the names that the picture uses, light and dark."""
    light, dark = ("".join(re.findall(r"--[\w-]+: #\w+;", part)) for part in COLOURS.read_text("utf-8").split(DARK))
    boxes = (f".timeline i.{kind} {{ background: var(--{kind}); color: var(--{kind}-ink); }}" for kind in EventKind)
    schemes = f".timeline {{{light}}}\nbody[data-theme=dark] .timeline {{{dark}}}\n"
    return "\n".join([schemes + f"{DARK} {{ body:not([data-theme=light]) .timeline {{{dark}}} }}", *boxes, ""])


def _row(timeline: Timeline, number: int, shown: list[Event]) -> str:
    boxes = "".join(_box(event, timeline.step_s) for event in shown if event.row == number)
    return f'<div class="row"><b>stage {number}</b><div class="lane">{boxes}</div></div>'


def _box(event: Event, step_s: float) -> str:
    left, width = 100 * event.start_s / step_s, 100 * (event.end_s - event.start_s) / step_s
    number = micro_batch(event) if event.kind in TASKS else ""
    return f'<i class="{event.kind}" style="left:{left:.2f}%;width:{width:.2f}%">{number}</i>'


def _axis(timeline: Timeline) -> str:
    """The times at most five round steps apart."""
    steps = (digit * 10.0**power for power in range(-6, 4) for digit in (1, 2, 5))
    step_s = next(s for s in steps if timeline.step_s / s < 6)
    times = (k * step_s for k in range(int(timeline.step_s / step_s) + 1))
    return "".join(f'<span style="left:{100 * t / timeline.step_s:.2f}%">{t:g} s</span>' for t in times)
