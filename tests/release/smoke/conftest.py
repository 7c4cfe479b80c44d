"""The command of the environment whose Python runs these tests, in a folder of its own, with a cache that all share."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Done = subprocess.CompletedProcess[str]
Ssdsl = Callable[..., Done]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def ssdsl(tmp_path: Path, cache: Path) -> Ssdsl:
    """Runs `ssdsl` with words, and expects this exit status."""
    command = str(Path(sys.executable).with_name("ssdsl"))
    here = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    here |= {"XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1", "COLUMNS": "120", "GLOO_SOCKET_IFNAME": "lo"}

    def run(words: str, status: int = 0, given: str = "") -> Done:
        called = [command, *words.split()]
        done = subprocess.run(called, cwd=tmp_path, env=here, input=given, capture_output=True, text=True, timeout=300)
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run
