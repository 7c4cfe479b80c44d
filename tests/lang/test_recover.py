"""All mistakes of syntax are told: of a plan with one broken line that one alone, of two broken ones both."""

from pathlib import Path
from random import Random

import pytest

from ssdsl.lang.recover import recovered, statements
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Source

ROOT = Path(__file__).parents[2]
PLANS = sorted(p for folder in ("examples", "examples/papers", "stdlib") for p in (ROOT / folder).glob("*.ssp"))
CASES = [p if n % 4 == 0 else pytest.param(p, marks=pytest.mark.slow) for n, p in enumerate(PLANS)]
WAYS = ("split model model", "x @ y", "let = 3", "order (a", "for x n y", "assign model two gpus", 'x = "a', "f(a))")


def lines_of(found: tuple[Diagnostic, ...]) -> list[int]:
    return [d.span.source.line_column(d.span.start)[0] for d in found if d.span is not None]


def broken(text: str, number: int, way: str) -> tuple[str, range, bool]:
    """The text with a statement replaced by a wrong one, or with its block kept under a wrong line; the lines of it,
    and whether what is indented below goes with it."""
    one = [*statements(text)][number]
    first = text[: one.start].count("\n") + 1
    lines = range(first, first + one.text.rstrip("\n").count("\n") + 1)
    new = " " * one.indent + way + (":" if one.opens else "") + "\n" * (len(lines))
    return text[: one.start] + new + text[one.end :], lines, one.opens


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_one_broken_line_is_one_mistake(path: Path) -> None:
    text, draw = path.read_text("utf-8"), Random(path.stem)
    assert recovered(Source("plan.ssp", text)).mistakes == ()
    for number in range(len([*statements(text)])):
        made, lines, _ = broken(text, number, draw.choice(WAYS))
        found = recovered(Source("plan.ssp", made)).mistakes
        at = lines_of(found)
        assert len(at) == 1 and at[0] in range(lines.start, lines.stop + 2), (made.split("\n")[lines.start - 1], found)


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_two_broken_lines_are_two_mistakes(path: Path) -> None:
    text, draw = path.read_text("utf-8"), Random(path.stem)
    flat = [n for n, one in enumerate(statements(text)) if not one.indent and not one.opens]
    for _ in range(8 if len(flat) > 1 else 0):
        first, second = sorted(draw.sample(flat, 2))
        made, later, _ = broken(text, second, draw.choice(WAYS))
        ways = [way for way in WAYS if "(a" not in way]  # an open bracket swallows what begins no statement
        made, earlier, _ = broken(made, first, draw.choice(ways))
        at = lines_of(recovered(Source("plan.ssp", made)).mistakes)
        assert len(at) == 2, (made, at)
        assert at[0] in range(earlier.start, earlier.stop + 2) and at[1] in range(later.start, later.stop + 3)


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("for s 0..2:\n    assign model two gpus\nlet = 2\n", ["E0111", "E0111", "E0111"]),
        ("order by clock for s n 0..2:\n    a at 1\n    b at 2\nlet = 2\n", ["E0111", "E0111"]),
        ("either model:\n    recompute model\nor:\n    let x = 1\nlet = 2\n", ["E0111", "E0111"]),
        ("if true:\n    let = 2\nmesh gpus(dp = 2)\n", ["E0111"]),
        ("if true:\nmesh gpus(dp = 2)\nlet = 2\n", ["E0119", "E0111"]),
        ("# ssdsl 9\nlet = 2\n", ["E0129", "E0111"]),
        ("let x = [1,\nmesh gpus(dp = 2)\nlet = 2\n", ["E0114", "E0111"]),
    ],
)
def test_blocks_and_brackets(text: str, codes: list[str]) -> None:
    assert [d.code for d in recovered(Source("plan.ssp", text)).mistakes] == codes
