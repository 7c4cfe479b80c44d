"""Where an entry ends, at a prompt and in a text that is read from a pipe."""

import pytest

from ssdsl.assist.highlight import pieces
from ssdsl.repl.terminal.blocks import entries, goes_on, indentation


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("let x = 1", False),
        ("", False),
        ("for s in 0..S:", True),
        ("for s in 0..S:  # a comment", True),
        ("for s in 0..S:\n    recompute stage[s]", True),
        ("for s in 0..S:\n    recompute stage[s]\n", False),
        ("for s in 0..S:\n    recompute stage[s]\n    ", False),
        ("mesh gpus(", True),
        ("mesh gpus(\n    pp = 2\n)", False),
        ('let x = model["h.(*"]', False),
        ("let x = 1  # (", False),
        ("use pipeline: gpipe", False),
        ("use pipeline:", False),
        (":show ops", False),
        (":", False),
    ],
)
def test_goes_on(text: str, more: bool) -> None:
    assert goes_on(text) is more


def test_indentation_follows_the_block() -> None:
    assert indentation("for s in 0..S:") == "    "
    assert indentation("for s in 0..S:\n    if s > 0:") == "        "
    assert indentation("for s in 0..S:\n    recompute a") == "    "
    assert indentation("mesh gpus(") == "    "


def test_entries_of_a_plan() -> None:
    text = (
        "# a plan\nparam S = 2\n\nmesh gpus(\n    pp = S,\n)\nfor s in 0..S:\n    recompute a\n\n    recompute b\n"
        "if S > 1:\n    let x = 1\nelse:\n    let x = 2\nmesh bad(dp = 2\nlet y = 3\n:plan"
    )
    assert list(entries(text.splitlines(keepends=True))) == [
        "# a plan",
        "param S = 2",
        "",
        "mesh gpus(\n    pp = S,\n)",
        "for s in 0..S:\n    recompute a\n\n    recompute b",
        "if S > 1:\n    let x = 1\nelse:\n    let x = 2",
        "mesh bad(dp = 2",
        "let y = 3",
        ":plan",
    ]


def test_colours_lose_no_character() -> None:
    line = 'split model["h.*"].fwd by batch into m = 4 -> 0..S # for "all"'
    found = list(pieces(line))
    assert "".join(text for _, text in found) == line
    kinds = {text: kind for kind, text in found}
    assert kinds["split"] == kinds["by"] == "keyword" and kinds["model"] == kinds["fwd"] == "builtin"
    assert kinds['"h.*"'] == "string" and kinds["4"] == "number" and kinds['# for "all"'] == "comment"
