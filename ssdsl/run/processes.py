"""Ends a run with all processes that it started."""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any, NoReturn

from ssdsl.runtime.health.stall import process_state
from ssdsl.runtime.health.stop_request import ASKING

GRACE_S = 2.0
PR_SET_PDEATHSIG = 1
MARK = "SSDSL_RUN"  # the environment variable that marks every process of a run


def end_with_parent(number: signal.Signals) -> None:
    """Asks Linux to send this process a signal when its parent ends, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def stop(agent: "Popen[bytes]", mark: str) -> None:
    """Ends torchrun, which ends its ranks; kills remaining processes after a moment, and waits until all have
    ended."""
    ranks = _marked(mark)
    agent.terminate()
    with contextlib.suppress(TimeoutExpired):
        agent.wait(GRACE_S)
    agent.kill()
    agent.wait()
    end = time.monotonic() + GRACE_S
    while time.monotonic() < end:
        left = _marked(mark)
        # a process on its way out has given up its memory, and with it its mark
        if not left and all(process_state(pid) in ("", "Z") for pid in ranks):
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


@dataclass
class StopSignal:
    """The signal with which a scheduler, or the user, asked this process to stop; None if none did."""

    number: int | None = None

    def end(self) -> NoReturn:
        """Ends this process, after its cleanup."""
        raise SystemExit(128 + (self.number or signal.SIGTERM))


@contextlib.contextmanager
def stop_signals() -> Iterator[StopSignal]:
    """A context in which the first SIGTERM or SIGUSR1 is noted; a second one raises an exception, so that cleanup
    runs."""
    noted = StopSignal()

    def note(number: int, _: Any) -> None:
        before, noted.number = noted.number, number
        if before is not None:
            noted.end()

    try:
        before = {number: signal.signal(number, note) for number in ASKING}
    except ValueError:  # not in the main thread: the caller's handlers stay
        yield noted
        return
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def sigterm_raises() -> Iterator[None]:
    """A context in which SIGTERM raises an exception, so that cleanup runs."""

    def end(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not in the main thread: the caller's handlers stay
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _marked(mark: str) -> list[int]:
    """The processes that inherited the mark, on Linux; torchrun gives each rank its own session."""
    wanted = f"{MARK}={mark}".encode()
    return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if wanted in _environment(path)]


def _environment(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\0")
    except OSError:  # it has ended, or belongs to another user
        return []
