"""torchrun starts a training script again after a rank was killed: it goes on as if nothing had happened."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2")


def run(folder: Path, kills: str) -> list[tuple[Any, list[tuple[int, str]]]]:
    """Of each attempt what it resumed, and its losses by step."""
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*TORCHRUN, str(ROOT / "tests/run/restarting.py"), str(folder), kills]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    found = []
    for attempt in range(3):
        texts = [path.read_text() for path in sorted(folder.glob(f"losses-{attempt}-*"))]
        if texts:
            resumed, losses = json.loads(texts[0])
            other, of_other = json.loads(texts[1])
            n = min(len(losses), len(of_other))
            assert resumed == other and losses[:n] == of_other[:n] and n >= len(losses) - 1
            found.append((resumed, list(map(tuple, losses))))
    assert kills == "yes" or len(found) == 1, done.stderr[-4000:]
    return found


def test_a_run_that_loses_ranks_goes_on_to_the_bit(tmp_path: Path) -> None:
    ((resumed, expected),) = run(tmp_path / "whole", "no")
    assert resumed is None and [step for step, _ in expected] == list(range(13))
    attempts = run(tmp_path / "killed", "yes")
    firsts = [losses[0][0] for _, losses in attempts]
    assert firsts[0] == 0 and firsts[1] in (3, 6) and firsts[2] in (3, 6), firsts
    assert attempts[0][1][-1][0] == 6  # the step that was killed has no loss
    for resumed, losses in attempts:
        first = losses[0][0]
        assert losses == expected[first : first + len(losses)]
        assert resumed is None if first == 0 else resumed == {"loss": expected[first - 1][1]}
    assert attempts[2][1][-1][0] == 12
