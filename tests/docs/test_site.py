"""The site builds without a warning: its links and anchors lead to something. Nothing is fetched."""

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from ssdsl.lang.parse import grammar_parser
from ssdsl.lang.parser.indentation import KEYWORDS

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "site"
PLANS = sorted(p for folder in ("examples", "examples/papers", "stdlib") for p in (ROOT / folder).glob("*.ssp"))
NEEDED = ("sphinx", "myst_parser", "furo")

if missing := [name for name in NEEDED if find_spec(name) is None]:
    pytest.skip(f"pip install '.[docs]' is what this needs: {', '.join(missing)}", allow_module_level=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, with a playground."""
    folder = tmp_path_factory.mktemp("site")
    played = folder / "played"
    played.mkdir()
    (played / "index.html").write_text("played")
    command = [sys.executable, str(SITE / "build.py"), str(folder / "site"), "--playground", str(played)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder / "site"


def test_links_lead_to_something(site: Path) -> None:
    """Links that Sphinx does not know, as those in HTML, and all anchors."""
    pages = {p: p.read_text("utf-8") for p in site.rglob("*.html") if "_static" not in p.parts}
    anchors = {p: set(re.findall(r' id="([^"]*)"', text)) for p, text in pages.items()}
    broken = []
    for page, text in pages.items():
        body = text.partition('<div class="content">')[2] if page.name != "timeline.html" else ""
        for link in re.findall(r' (?:href|src)="([^"]*)"', body):
            file, _, anchor = link.split("?")[0].partition("#")
            if re.match(r"\w+:", link):
                continue
            target = (page.parent / file).resolve() if file else page
            if not target.is_file() or (anchor and target in anchors and anchor not in anchors[target]):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert broken == []


def test_the_first_page_has_a_picture_a_plan_and_the_playground(site: Path) -> None:
    text = (site / "index.html").read_text("utf-8")
    assert (
        text.count('<i class="fwd"') > 8 and 'href="timeline.html"' in text and 'href="playground/index.html"' in text
    )
    assert "exactly what one device computes" in text
    assert (site / "playground" / "index.html").read_text() == "played"
    assert re.search(r'<span class="k">assign</span>', text), "plans have colours"


def test_every_diagnostic_has_a_page(site: Path) -> None:
    index = (site / "errors" / "index.html").read_text("utf-8")
    codes = {p.stem for p in (site / "errors").glob("E*.html")}
    assert codes == set(re.findall(r'href="(E\d+)\.html"', index)) and len(codes) > 200
    assert 'href="../errors/E0203.html"' in (site / "docs" / "training.html").read_text("utf-8"), "codes are links"
    page = (site / "errors" / "E0203.html").read_text("utf-8")
    assert "help: choose a divisor of 12" in page and "multiple of their number" in page


def test_llms_txt_names_markdown_that_is_there(site: Path) -> None:
    lines = (site / "llms.txt").read_text("utf-8").split("\n")
    assert lines[0] == "# ssdsl" and lines[2].startswith("> ")
    named = re.findall(r"^- \[[^]]+\]\(([^)]+)\): \S", "\n".join(lines), re.MULTILINE)
    assert {"README.md", "docs/tutorial.md", "errors/index.md"} <= set(named)
    assert [name for name in named if not (site / name).is_file()] == []
    assert [p.name for p in (ROOT / "docs").glob("*.md") if f"docs/{p.name}" not in named] == []


@pytest.mark.parametrize("path", PLANS, ids=lambda p: p.stem)
def test_colours_are_those_of_the_language(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SITE))
    from pygments.token import Keyword, Number, Operator, String
    from ssp_lexer import SspLexer

    text = path.read_text("utf-8")
    starts = {at: kind for at, kind, _ in SspLexer(stripnl=False).get_tokens_unprocessed(text)}
    wanted = {"NUMBER": Number, "STRING": String}
    for token in grammar_parser().lex(text):
        before = text[: token.start_pos].rstrip()
        if before.endswith(".") and not before.endswith(".."):
            continue  # where any word may stand
        kind = starts.get(token.start_pos)
        if str(token) in KEYWORDS:
            assert kind in Keyword or kind in Operator, (token, kind)
        elif token.type in wanted:
            assert kind in wanted[token.type], (token, kind)


def test_nothing_generated_is_committed() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    done = subprocess.run(["git", "ls-files", "docs/site"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {Path(name).suffix for name in done.stdout.split()} <= {".py", ".md", ".css", ".ssp"}
