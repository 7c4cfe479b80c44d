"""The last line of a run says how many slow tests were left out, whether one process ran the others or several."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """\
import pytest

@pytest.mark.slow
@pytest.mark.parametrize("x", [1, 2])
def test_slow(x): pass

@pytest.mark.thinned(2)
@pytest.mark.parametrize("x", [1, 2, 3])
def test_thinned(x): pass

def test_quick(): pass
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-m", "not slow"], r"^3 slow tests left out; make test-all runs them; took \d+:\d\d$"),
        (["-m", "not slow", "--numprocesses", "2"], r"^3 slow tests left out; make test-all runs them; took \d+:\d\d$"),
        ([], r"6 passed"),
    ],
)
def test_left_out(tmp_path: Path, options: list[str], said: str) -> None:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow\n  thinned\n")
    command = [sys.executable, "-m", "pytest", "--rootdir", str(tmp_path), *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert re.search(said, done.stdout, re.MULTILINE), done.stdout
    assert ("left out" in done.stdout) == bool(options)
