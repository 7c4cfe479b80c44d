"""The first page: its text is `index.md`, its plan `first.ssp`, its picture a step of that plan."""

import re
from pathlib import Path

HERE = Path(__file__).parent
LIBRARY = HERE.parents[1] / "stdlib" / "pipeline.ssp"
PLAYED = '<a href="playground/index.html">Play in the browser</a>, without installing anything'
PLAYGROUND = """\
# Playground

Write a plan, and see its communication, its timeline and its memory. The compiler runs in your browser.

<p><a class="open" href="playground/index.html">Open the playground</a></p>
"""


def first_page(picture: str, has_playground: bool) -> str:
    """The text, with the plan and the picture in it."""
    plan = (HERE / "first.ssp").read_text("utf-8")
    slots = {
        "%plan%": plan.rstrip(),
        "%schedule%": _schedule("zb_h1"),
        "%timeline%": picture,
        "%playground%": "playground" if has_playground else "",
        "%try%": f"- {PLAYED}" if has_playground else "",
    }
    text = (HERE / "index.md").read_text("utf-8")
    for slot, value in slots.items():
        assert slot in text, slot
        text = text.replace(slot, value)
    return text


def _schedule(name: str) -> str:
    """A function of the library."""
    found = re.search(rf"^def {name}\(.*?(?=\n\S|\n\n)", LIBRARY.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert found, name
    return found[0]
