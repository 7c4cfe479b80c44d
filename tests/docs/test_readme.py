"""The README is short, and its first plan is the example; the index has every page. test_console.py runs commands."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def test_the_first_plan_is_the_example() -> None:
    assert "\n".join(code((ROOT / "examples" / "megatron.ssp").read_text())) in "\n".join(code(README))


def test_it_is_short() -> None:
    assert len(README.split()) <= 1300


def test_the_index_has_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    pages = [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"]
    assert [name for name in pages if f"({name}" not in index] == []


def code(text: str) -> list[str]:
    """The lines without comments and empty ones."""
    return [line for line in (line.partition("#")[0].rstrip() for line in text.splitlines()) if line]
