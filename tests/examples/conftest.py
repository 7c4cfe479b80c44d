"""The programs of the examples, as modules and as torchrun starts them."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.torchrun import torchrun as run_script

ROOT = Path(__file__).parents[2]
NANOGPT = ROOT / "examples" / "nanogpt"


@pytest.fixture
def nanogpt(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Its modules, which import each other by plain names, for one test."""
    names = [path.stem for path in NANOGPT.glob("*.py") if path.stem != "train"]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(NANOGPT))
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def torchrun() -> Callable[..., str]:
    """What a script prints in two processes."""

    def run(script: Path, *options: str) -> str:
        done = run_script(script, *options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
