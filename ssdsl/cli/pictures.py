"""Saves timelines and pages as files: Chrome trace events, HTML. A file is written as a whole or not at all."""

import json
from typing import TYPE_CHECKING

from ssdsl.cli.terminal import talk
from ssdsl.lang.save import save_text

if TYPE_CHECKING:
    from ssdsl.show.view import View
    from ssdsl.simulate.timeline import Timeline


def save_trace(file: str, *timelines: "Timeline") -> None:
    """Saves several timelines as Chrome trace events in one file."""
    from ssdsl.show.charts.chrome_trace import chrome_trace

    save_text(file, json.dumps(chrome_trace(*timelines), allow_nan=False))
    talk.print(f"{file}: open it at https://ui.perfetto.dev", highlight=False, markup=False, soft_wrap=True)


def save_html(file: str, timeline: "Timeline", by_line: "View", exposed: "View") -> None:
    """Saves a timeline as one self-contained page, with figures by line of the plan and exposed communication."""
    from ssdsl.show.charts.timeline_html import timeline_html

    save_page(file, timeline_html(timeline, by_line, exposed))


def save_page(file: str, page: str) -> None:
    """Saves the text of a page."""
    save_text(file, page)
    talk.print(f"{file}: open it in a browser", highlight=False, markup=False, soft_wrap=True)
