"""What the README shows works: its model trains under its plan, its plans verify, its commands exist."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from ssdsl.cli.app import app

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PLANS = re.findall(r"^```ssp\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
PYTHON = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
MODEL = next(text for text in PYTHON if "nn.Module" in text)


def test_your_own_model(program: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "mymodel.py").write_text(MODEL)
    (tmp_path / "mine.ssp").write_text(PLANS[0])
    program(tmp_path / "mine.ssp", f"{tmp_path / 'mymodel.py'}:net").verify()


@pytest.mark.parametrize(("number", "name"), [(1, "interlaced"), (2, "ulysses")])
def test_plans_are_those_of_the_tests(number: int, name: str) -> None:
    assert code(PLANS[number]) == code((Path(__file__).parent / "plans" / f"{name}.ssp").read_text())


def test_the_first_plan_is_the_example() -> None:
    assert "\n".join(code((ROOT / "examples" / "megatron.ssp").read_text())) in "\n".join(code(README))


def test_commands() -> None:
    named = re.findall(r"^\| `ssdsl (\w+)", README, re.MULTILINE)
    assert sorted(named) == sorted(get_command(app).commands)  # type: ignore[attr-defined]


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert [t for t in targets if not t.startswith("https://") and not (ROOT / t).exists()] == []


def code(text: str) -> list[str]:
    """The lines without comments and empty ones."""
    return [line for line in (line.partition("#")[0].rstrip() for line in text.splitlines()) if line]
