"""Saves pictures of a timeline: Chrome trace events, an HTML page; whole or not at all."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ssdsl.cli.terminal import talk
from ssdsl.lang.errors import FileUnwritable
from ssdsl.text.diagnostic import PlanError

if TYPE_CHECKING:
    from ssdsl.simulate.timeline import Timeline


def save_trace(file: str, *timelines: "Timeline") -> None:
    """Chrome trace events of several timelines, to be laid over each other."""
    from ssdsl.show.chrome_trace import chrome_trace

    save(file, json.dumps(chrome_trace(*timelines), allow_nan=False))
    talk.print(f"{file}: open it at https://ui.perfetto.dev", highlight=False)


def save_html(file: str, timeline: "Timeline") -> None:
    """One self-contained page."""
    from ssdsl.show.timeline_html import timeline_html

    save(file, timeline_html(timeline))
    talk.print(f"{file}: open it in a browser", highlight=False)


def save(file: str, text: str) -> None:
    """Writes a file; raises PlanError where that cannot be."""
    path = Path(file)
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_text(text, "utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise PlanError(FileUnwritable(None, file, (error.strerror or str(error)).lower())) from error
