"""docs/extending-statement.md shows a commit that works: it applies to the sources, and its test passes there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
COPIED = ("ssdsl", "grammar", "stdlib", "tests/conftest.py", "tests/plan/conftest.py")


def test_the_commit_adds_a_statement(tmp_path: Path) -> None:
    for name in COPIED:
        source, target = ROOT / name, tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    page = (ROOT / "docs" / "extending-statement.md").read_text("utf-8")
    found = re.search(r"```diff\n(.*?)```", page, re.DOTALL)
    assert found
    (tmp_path / "commit.diff").write_text(found[1])
    _run(tmp_path, "git", "apply", "-C1", "commit.diff")
    _run(tmp_path, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/plan")
    said = _run(tmp_path, sys.executable, "-c", SAID)
    assert "did you mean `colocate`?" in said and "Put operators where others are." in said


SAID = """
from ssdsl.lang.parse import parse
from ssdsl.repl.help import TOPICS
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source
try:
    parse(Source("plan.ssp", "colocte a with b"))
except PlanError as error:
    (found,) = error.diagnostics
    print(found.text(found.help))
print(TOPICS["colocate"])
"""


def _run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder), "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
