"""What the ```console blocks of the pages show is what their commands print; `--update-golden` writes it there."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ssdsl.cli.terminal import PIPED_WIDTH, results, talk
from tests.docs.console import ROOT, Command, File, is_shown, run_session, session_of, with_elisions

PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if any(isinstance(step, Command) for step in session_of(page.read_text("utf-8")))
]
WITH_SLOW_BLOCKS = [
    p for p in PAGES if session_of(p.read_text("utf-8")) != session_of(p.read_text("utf-8"), slow=False)
]


@pytest.fixture(autouse=True, scope="module")
def quick_comparisons() -> None:
    """Pages show what a user's comparison allows."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a session runs, with lines as wide as those of the pages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(results, "width", PIPED_WIDTH)
    monkeypatch.setattr(talk, "width", PIPED_WIDTH)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=[p.name for p in PAGES])
def test_a_page_shows_what_its_commands_print(
    page: Path, folder: Path, request: pytest.FixtureRequest, golden: Callable[[Path, str], None]
) -> None:
    update = request.config.getoption("--update-golden")
    golden(page, run_session(page.read_text("utf-8"), folder, update, slow=False))


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_SLOW_BLOCKS, ids=[p.name for p in WITH_SLOW_BLOCKS])
def test_a_page_with_slow_blocks_shows_what_its_commands_print(
    page: Path, folder: Path, request: pytest.FixtureRequest, golden: Callable[[Path, str], None]
) -> None:
    golden(page, run_session(page.read_text("utf-8"), folder, request.config.getoption("--update-golden")))


def test_a_session_is_what_the_page_says() -> None:
    steps = session_of(
        "```console\n$ cat > a.txt <<'EOF'\none\nEOF\n$ cat \\\n    a.txt\none\n```\n"
        "<!-- not run: slow -->\n```console\n$ sleep 9\n```\n"
        "<!-- name: b.ssp -->\n```ssp\nmesh gpus(dp = 2)\n```\n```python\n# c.py\nimport torch\n```\n"
    )
    assert session_of("<!-- slow: two processes -->\n```console\n$ ls\n```\n", slow=False) == []
    assert [
        session_of(f"```console\n$ ssdsl verify p\n{shown}\n```\n", slow=False) == []
        for shown in ("equal", "error[E0203]")
    ] == [True, False]
    commands, files = [s for s in steps if isinstance(s, Command)], [s.name for s in steps if isinstance(s, File)]
    assert [(c.text, c.shown) for c in commands] == [
        ("cat > a.txt <<'EOF'\none\nEOF", ""),
        ("cat \\\n    a.txt", "one\n"),
    ]
    assert files == ["b.ssp", "c.py"]


@pytest.mark.parametrize(
    ("words", "shown", "found", "is_same"),
    [
        ("show", "size 4\n", "size 4\n", True),
        ("show", "size 4\n", "size 5\n", False),
        ("show", "step 4.2 ms\n", "step 4.3 ms\n", False),
        ("run", "step 4.2 ms\n", "step  39 ms\n", True),
        ("check", "proved in 0.01 s: 2 functions\n", "proved in 12 ms: 2 functions\n", True),
        ("verify", "losses  1.2e-07  24.2%  step 2\n", "losses  8e-08  9.1%  step 0\n", True),
        ("show", "loss 1.234567\n", "loss 1.234321\n", True),
        ("show", "loss 1.234567\n", "loss 1.244567\n", False),
        ("show", "one\n...\nfive\n", "one\ntwo\nthree\nfive\n", True),
        ("show", "one\n...\nfive\n", "one\ntwo\nthree\n", False),
        ("show", "one ... five\n", "one two five\n", True),
    ],
)
def test_what_is_compared(words: str, shown: str, found: str, is_same: bool) -> None:
    assert is_shown(Command(f"ssdsl {words}", shown, 0, 0), found) == is_same


@pytest.mark.parametrize(
    ("shown", "new"),
    [
        ("old\n", "one\ntwo 2\nthree\nfour\n"),
        ("old\n...\n", "one\n...\n"),
        ("...\nold\n", "...\nfour\n"),
        ("old\n...\ntwo 2\nold\n...\n", "one\n...\ntwo 2\nthree\n...\n"),
    ],
)
def test_an_update_leaves_out_what_was_left_out(shown: str, new: str) -> None:
    assert with_elisions(Command("ssdsl show", shown, 0, 0), "one\ntwo 2\nthree\nfour\n\n") == new


def test_an_update_asks_where_a_line_went() -> None:
    with pytest.raises(AssertionError, match="write by hand"):
        with_elisions(Command("ssdsl show", "...\ngone\n...\n", 0, 0), "one\ntwo\n")
