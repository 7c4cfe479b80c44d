"""The programs of the examples, as modules and as torchrun starts them."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

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
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        done = subprocess.run(
            [*launcher, str(script), *options], env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
