"""Two checkouts, the working tree and a revision beside it, and a long-lived process that runs the commands of each."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("worker.py")
MOST_MB = 3000  # of a process, which keeps the graphs of all models; with more, a fresh one goes on
LIMIT_S = 900.0  # for one command


@contextlib.contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """A folder with the files of a revision, removed afterwards, whatever ends the block."""
    folder = Path(tempfile.mkdtemp(prefix="ssdsl-same-")) / "checkout"
    git = ["git", "-C", str(ROOT), "worktree"]
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        _quiet([*git, "add", "--detach", str(folder), revision])
        yield folder
    finally:
        signal.signal(signal.SIGTERM, before)
        with contextlib.suppress(subprocess.CalledProcessError):  # not there yet
            _quiet([*git, "remove", "--force", str(folder)])
        shutil.rmtree(folder.parent, ignore_errors=True)


def _quiet(command: list[str]) -> None:
    """Git, which Ctrl-C shall not end before it has removed what it made."""
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    if done.returncode:
        print(done.stderr.strip(), file=sys.stderr)
        done.check_returncode()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command ended with and printed. Status -1: its process died or did not answer in time."""

    status: int
    out: str
    err: str

    @property
    def is_refusal(self) -> bool:
        """Whether it only said why not: a plan that is wrong prints no result."""
        return self.status != 0 and not self.out

    @property
    def is_crash(self) -> bool:
        return self.status not in (0, 1, 2)


@dataclass(slots=True)
class Worker:
    """The commands of a checkout; they run in `folder`, which is its own. The process starts with the first one."""

    root: Path
    folder: Path
    peak_mb: int = 0
    process: "subprocess.Popen[str] | None" = None
    is_closed: bool = False

    def start(self) -> "subprocess.Popen[str]":
        if self.is_closed:
            raise RuntimeError("the comparison has ended")
        self.folder.mkdir(parents=True, exist_ok=True)
        cache = {"XDG_CACHE_HOME": str(self.folder / "cache")}  # what it found out about operators is its own
        quiet = {"NO_COLOR": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "PYTHONPATH")}
        self.peak_mb = 0
        return subprocess.Popen(
            [sys.executable, str(WORKER), str(self.root)],
            cwd=self.folder,
            env=environment | cache | quiet,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(self.folder / "stderr.log").open("a"),
            text=True,
            start_new_session=True,  # Ctrl-C is for the one who started it
        )

    def ask(self, arguments: list[str]) -> None:
        """Let a command begin; of the examples each checkout has its own."""
        shipped = ROOT / "examples"
        own = [str(self.root / Path(a).relative_to(ROOT)) if Path(a).is_relative_to(shipped) else a for a in arguments]
        self.process = self.process or self.start()
        with contextlib.suppress(OSError):  # it has died, as its answer will say
            assert self.process.stdin
            print(json.dumps(own), file=self.process.stdin, flush=True)

    def answer(self) -> Answer:
        """What the command that was asked last says when it has ended."""
        process = self.process
        assert process and process.stdout
        watch = threading.Timer(LIMIT_S, process.kill)
        watch.start()
        line = process.stdout.readline()
        watch.cancel()
        if not line:
            return Answer(-1, "", f"no answer; the process ended with status {process.wait()}")
        found: dict[str, Any] = json.loads(line)
        self.peak_mb = found["peak_mb"]
        return Answer(found["status"], found["out"], found["err"])

    @property
    def is_worn(self) -> bool:
        """Whether a fresh process should go on."""
        return self.process is not None and (self.process.poll() is not None or self.peak_mb > MOST_MB)

    def stop(self) -> None:
        """At once; a fresh process answers the next command."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def close(self) -> None:
        """For good, also while another thread waits for an answer."""
        self.is_closed = True
        self.stop()
