"""Saves timelines and pages as files: Chrome trace events, PyTorch's profiler's, HTML. A file is written as a whole or
not at all."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ssdsl.cli.terminal import talk
from ssdsl.lang.errors.files import FileUnwritable
from ssdsl.lang.save import FileMark, check_file, reason_of, save_text
from ssdsl.text.diagnostic import PlanError

if TYPE_CHECKING:
    from ssdsl.show.view import View
    from ssdsl.simulate.timeline import Timeline


def save_trace(file: str, *timelines: "Timeline") -> None:
    """Saves several timelines as Chrome trace events in one file."""
    from ssdsl.show.charts.chrome_trace import chrome_trace

    save_text(file, json.dumps(chrome_trace(*timelines), allow_nan=False))
    talk.print(f"{file}: open it at https://ui.perfetto.dev", highlight=False, markup=False, soft_wrap=True)


def is_folder(trace: str) -> bool:
    """Whether a trace is a folder with a file a rank: its name ends with `/`."""
    return trace.endswith("/")


def check_traces(folder: str) -> None:
    """Raises PlanError if the folder cannot be written, or has traces of ranks that ssdsl did not write."""
    ranks = [str(path) for path in Path(folder).glob("rank*.json")]
    for file in ranks or [f"{folder}rank0.json" if Path(folder).is_dir() else folder.rstrip("/")]:
        check_file(file, FileMark.PROFILER)


def save_traces(folder: str, timeline: "Timeline") -> None:
    """Saves a timeline as PyTorch's profiler does, a file a rank."""
    from ssdsl.show.charts.profiler_trace import profiler_traces

    try:
        Path(folder).mkdir(exist_ok=True)
    except OSError as error:
        raise PlanError(FileUnwritable(None, folder, reason_of(error))) from error
    for rank, trace in profiler_traces(timeline):
        save_text(f"{folder}rank{rank}.json", json.dumps(trace, allow_nan=False))
    talk.print(f"{folder}: a file a rank, as of PyTorch's profiler", highlight=False, markup=False, soft_wrap=True)


def save_html(file: str, timeline: "Timeline", by_line: "View", exposed: "View") -> None:
    """Saves a timeline as one self-contained page, with figures by line of the plan and exposed communication."""
    from ssdsl.show.charts.timeline_html import timeline_html

    save_page(file, timeline_html(timeline, by_line, exposed))


def save_page(file: str, page: str) -> None:
    """Saves the text of a page."""
    save_text(file, page)
    talk.print(f"{file}: open it in a browser", highlight=False, markup=False, soft_wrap=True)
