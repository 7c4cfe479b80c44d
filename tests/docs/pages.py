"""Pages whose tables and pictures tests write."""

import re


def with_text(text: str, mark: str, new: str) -> str:
    """A page with what follows a mark, up to the next empty line, replaced."""
    before, found, after = text.partition(f"<!-- {mark} -->\n")
    assert found, f"the page has no {mark}"
    return before + found + new + re.sub(r"\A([^\n]+\n)*", "", after)
