"""`ssdsl show PLAN program` and `graph`: the program, or the captured model, as text; repeated layers are cut short."""

import re
from collections.abc import Iterable

from ssdsl.ir.program import Program, Role
from ssdsl.ir.text.program import program_blocks
from ssdsl.model.graph import Graph
from ssdsl.model.graph_text import graph_text

NUMBER = re.compile(r"_?\d+")
LONGEST = 64  # lines of a repetition
FEWEST = 6  # comments that are worth a line of their own


def shown_program(program: Program, roles: Iterable[Role] | None = None, every: bool = False) -> str:
    """The text; without `every`, repetitions that differ only in numbers are shown once."""
    blocks = program_blocks(program, roles)
    return "\n\n".join("\n".join(block if every else folded(block)) for block in blocks) + "\n"


def folded(lines: list[str], longest: int = LONGEST) -> list[str]:
    """The lines, with runs of repetitions that differ only in numbers shown once; a repetition has at most `longest`
    lines.

    >>> folded(["start", *(f"  step {k}" for k in range(9)), "end"])
    ['start', '  step 0', '  ... 8 more like this', 'end']
    """
    shapes = [NUMBER.sub("", line) for line in lines]
    shown: list[str] = []
    at = 0
    while at < len(lines):
        length, times = _repetition(shapes, at, longest)
        shown += lines[at : at + length]
        if times > 1:
            indent = " " * (len(lines[at]) - len(lines[at].lstrip()))
            what = "this" if length == 1 else f"these {length} lines"
            shown.append(f"{indent}... {times - 1} more like {what}")
        at += length * times
    return shown


def _repetition(shapes: list[str], at: int, longest: int) -> tuple[int, int]:
    """The length of the repeated block that begins here, and the number of times that it occurs; if there are several,
    the one that saves the most lines."""
    best, saved = (1, 1), FEWEST
    for length in range(1, min(longest, (len(shapes) - at) // 2) + 1):
        if shapes[at + length] != shapes[at]:
            continue
        times = 1
        pattern = shapes[at : at + length]
        while shapes[at + times * length : at + (times + 1) * length] == pattern:
            times += 1
        if (times - 1) * length > saved:
            best, saved = (length, times), (times - 1) * length
    return best


LONGEST_LAYER = 512  # lines of a layer


def shown_graph(graph: Graph, every: bool = False) -> str:
    """The text of a graph; without `every`, layers that differ only in numbers are shown once."""
    text = graph_text(graph)
    return text if every else "\n".join(folded(text.splitlines(), LONGEST_LAYER)) + "\n"
