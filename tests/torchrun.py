"""torchrun as a run of ssdsl starts it: ranks are copies of one process that has loaded torch."""

import os
import subprocess
import sys
from pathlib import Path

from ssdsl.run.launch import FORKED

ROOT = Path(__file__).parents[1]


def torchrun(script: Path, *arguments: str, restarts: int = 0) -> "subprocess.CompletedProcess[str]":
    """A script in two processes, which find the project."""
    where = ["--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}"]
    command = [sys.executable, "-m", "ssdsl.run.torchrun_agent", *where, *FORKED, str(script), *arguments]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SSDSL_PARENT": str(os.getpid())}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
