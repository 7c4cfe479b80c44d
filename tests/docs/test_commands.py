"""docs/commands.md has every command and every plan that comes with ssdsl."""

import re
from pathlib import Path

from typer.main import get_command

from ssdsl.cli.app import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "commands.md").read_text("utf-8")


def test_every_command_is_in_the_table() -> None:
    named = re.findall(r"^\| `ssdsl (\w+)", PAGE, re.MULTILINE)
    assert sorted(named) == sorted(get_command(app).commands)  # type: ignore[attr-defined]


def test_every_example_is_named() -> None:
    (named,) = re.findall(r"^PLAN is a file, or a name of `ssdsl plans`: (.*?)\. ", PAGE, re.MULTILINE | re.DOTALL)
    assert sorted(re.findall(r"\w+", named)) == sorted(path.stem for path in (ROOT / "examples").glob("*.ssp"))
