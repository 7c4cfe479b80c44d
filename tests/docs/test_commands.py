"""docs/commands.md has every command and every plan that comes with ssdsl, docs/json.md every command with `--json`."""

import re
from pathlib import Path
from typing import Any

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


def test_every_command_that_prints_json_is_in_its_table() -> None:
    def printing(name: str, command: Any) -> list[str]:
        inner = [
            one for sub in getattr(command, "commands", {}).items() for one in printing(f"{name} {sub[0]}", sub[1])
        ]
        return inner + [name.strip()] * any("--json" in option.opts for option in command.params)

    page = (ROOT / "docs" / "json.md").read_text("utf-8").partition("## ")[0]
    told = re.findall(r"`([a-z ]+)`", "".join(re.findall(r"^\| (.*?) \|", page, re.MULTILINE)))
    assert {name.split()[0] for name in printing("", get_command(app))} == {name.split()[0] for name in told}
