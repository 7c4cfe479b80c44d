"""Makes the changes that a help names in a plan's text."""

import re

CHANGE = re.compile(r"in line (\d+) write `(.*?)`, not `(.*?)`(?=$|[\n;:])|leave out line (\d+)", re.M)


def changes(said: str) -> list[tuple[str, ...]]:
    """The changes that a help names."""
    return [match.groups("") for match in CHANGE.finditer(said)]


def followed(text: str, said: str, number: int = 0) -> str:
    """The text with one of the changes."""
    at, new, old, left_out = changes(said)[number]
    lines = text.split("\n")
    if left_out:
        del lines[int(left_out) - 1]
    else:
        assert old in lines[int(at) - 1]
        lines[int(at) - 1] = lines[int(at) - 1].replace(old, new)
    return "\n".join(lines)
