"""torchrun as a user starts it, or as a run of ssdsl does: ranks are then copies of one process with torch loaded."""

import os
import subprocess
from pathlib import Path

from ssdsl.run.launch import FORKED

ROOT = Path(__file__).parents[1]


def torchrun(
    python: str, script: Path, *arguments: str, restarts: int = 0, copies: bool = False
) -> "subprocess.CompletedProcess[str]":
    """A script in two processes, which find the project."""
    where = ["--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}"]
    agent, how = ("ssdsl.run.torchrun_agent", FORKED) if copies else ("torch.distributed.run", ())
    command = [python, "-m", agent, *where, *how, str(script), *arguments]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SSDSL_PARENT": str(os.getpid())}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
