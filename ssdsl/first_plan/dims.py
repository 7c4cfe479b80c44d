"""The dimensions of a model as comments of its first plan: sizes, which widths divide them, where they lie."""

from collections.abc import Iterator

from ssdsl.first_plan.ladder import KNOWN
from ssdsl.lang.formatter.spell import spell_dim
from ssdsl.model.graph import Graph
from ssdsl.show.tables.operators import dims_view

MOST = 16  # rows
MOST_DIVISORS = 4
WIDTH = 116  # of a line, without its `# `
HEADS = ("dimension", "size", "times", "widths", "other divisors", "as in")


def dims_lines(graph: Graph, devices: int) -> Iterator[str]:
    """A table of the dimensions, the usual ones and those of most operators first. *Widths* are numbers that divide
    both the dimension and the number of devices; *times* is how many dimensions have the name and the size."""
    usual = ("batch", "seq", *KNOWN, "experts", "hidden")
    rows = [_row(row, devices) for row in sorted(dims_view(graph).rows, key=lambda row: row[0] not in usual)]
    if not rows:
        yield "none: all tensors are single numbers"
        return
    shown = [HEADS, *rows[:MOST]]
    wide = [max(len(row[at]) for row in shown) for at in range(len(HEADS))]
    for row in shown:
        cells = (
            text.rjust(n) if at in (1, 2) else text.ljust(n) for at, (text, n) in enumerate(zip(row, wide, strict=True))
        )
        yield _short("  ".join(cells).rstrip())
    if len(rows) > MOST:
        yield f"and {len(rows) - MOST} more"


def _row(row: tuple[object, ...], devices: int) -> tuple[str, ...]:
    name, size, times, _, where, fixed = row
    assert isinstance(size, int)
    if str(fixed).endswith("(all)"):
        return spell_dim(str(name)), str(size), str(times), "cannot be split", "", str(where)
    found = divisors(size)
    widths = [n for n in found if devices % n == 0]
    others = [n for n in found if devices % n]
    return spell_dim(str(name)), str(size), str(times), _listed(widths) or "-", _listed(others) or "-", str(where)


def divisors(number: int) -> list[int]:
    """All divisors but 1.

    >>> divisors(12)
    [2, 3, 4, 6, 12]
    """
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small[1:], *(number // n for n in small)} - {1})


def _listed(numbers: list[int]) -> str:
    if len(numbers) > MOST_DIVISORS:
        return ", ".join([*map(str, numbers[: MOST_DIVISORS - 1]), "...", str(numbers[-1])])
    return ", ".join(map(str, numbers))


def _short(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 4]} ..."
