"""Tables and pages in a notebook's cell, and tables as plain text."""

import html
import io
from collections.abc import Iterable

from rich.console import Console

from ssdsl.show.view import View, table

WIDTH = 160  # characters of the tables as text


def text_of(views: Iterable[View]) -> str:
    """Tables as text, without colours."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, color_system=None, highlight=False, force_jupyter=False)
    for view in views:
        console.print(table(view, WIDTH))
    return out.getvalue()


def cell_of(text: str, page: str = "") -> str:
    """The HTML of a cell that shows a text, and below it a page, if one is given."""
    frame = f'<iframe srcdoc="{html.escape(page)}" style="width:100%;height:32em;border:0"></iframe>' if page else ""
    return f"<pre>{html.escape(text)}</pre>{frame}"
