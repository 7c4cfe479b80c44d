"""Heartbeat: writes this rank's status to a file twice a second, for the ranks and the launcher that wait for it.

A separate thread inspects the main one, so the tasks of a step pay nothing. The file has a fixed size that is allocated
at the start: a rank can still say why it failed when the disk is full. This module does not need torch.
"""

import contextlib
import json
import linecache
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from ..ranks.role_place import role_line

SIZE = 16384
BEAT_S = 0.5
WAITS = re.compile(r"\.wait\(|\bdist\.|synchronize|barrier|\bnew_group")  # lines that wait for other ranks


def attempt() -> int:
    """The number of times that torchrun has restarted the ranks of this run."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


class Heartbeat:
    """The status of this rank, and its file `rank<N>.state`: one line of JSON, padded with spaces.

    `doing` says in words what the rank does; after `follow`, it is the task that the given function returns. `wait`
    says what the rank waits for. Without a folder nothing is written.
    """

    def __init__(self, folder: Path | None, rank: int) -> None:
        self.known: dict[str, Any] = {"rank": rank, "pid": os.getpid(), "role": "", "step": None, "doing": "starting"}
        self.known |= {"since": time.time(), "waits": False, "wait": "", "line": "", "failed": None, "ended": False}
        self.known |= {"attempt": attempt(), "began": time.time(), "host": socket.gethostname()}
        self.look: Callable[[], tuple[int, str]] | None = None
        self.wait: Callable[[], str] | None = None
        self.seen: tuple[object, ...] = ()
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.file = None
        if folder is not None:
            self.file = os.open(folder / f"rank{rank}.state", os.O_RDWR | os.O_CREAT, 0o644)
        self._write()
        self.thread = threading.Thread(target=self._run, daemon=True, name="heartbeat")
        self.thread.start()

    def report(self, doing: str, role: str = "") -> None:
        """Sets what the rank does from now on; used before and after training."""
        self.look = self.wait = None
        self.known |= {"doing": doing, "role": role or self.known["role"]}
        self._beat()

    def follow(self, look: Callable[[], tuple[int, str]], wait: Callable[[], str] | None = None) -> None:
        """From now on, `look` returns the step and the task, and `wait` what the rank waits for ("" if nothing).

        A task that is another string object than at the last look is a new task of equal name: the rank has moved.
        """
        self.look, self.wait = look, wait

    def state(self) -> dict[str, Any]:
        """The current status."""
        return self.known | {"beat": time.time()}

    def stop(self) -> None:
        """Updates the status for the last time: the rank has failed, or its script ends.

        The thread is waited for: one that asks torch while Python ends would abort the process.
        """
        self.over.set()
        self.thread.join()
        self.known["line"] = ""
        self._ask()

    def failed(self, text: str, mistake: str | None = None, stall: dict[str, Any] | None = None) -> None:
        """Writes why the rank fails; nothing is written after that.

        `mistake` is a mistake of the user that all ranks report. `stall` is set if the rank ends because another one
        hangs.
        """
        self.over.set()
        self.known["failed"] = {"text": text[-SIZE // 4 :], "time": time.time(), "stall": stall}
        if mistake is not None and len(mistake) < SIZE // 4:
            self.known["failed"]["mistake"] = mistake
        self._write()

    def end(self) -> None:
        """Marks that the rank has finished its work."""
        self.over.set()
        self.thread.join()
        self.known["ended"] = True
        self._write()

    def _run(self) -> None:
        while not self.over.wait(BEAT_S):
            with contextlib.suppress(Exception):  # a race with the main thread: retried
                self._beat()

    def _beat(self) -> None:
        with self.lock:
            if self.over.is_set():
                return
            self._ask()
            self.known["waits"] = self.known["wait"] != "" or _is_waiting()
            self.known["line"] = "{}, line {}".format(*line) if (line := role_line()) is not None else ""
            now = (self.known["step"], self.known["doing"], self.known["wait"])
            if now != self.seen[:3] or self.known["doing"] is not self.seen[1]:
                self.seen, self.known["since"] = now, time.time()
        self._write()

    def _ask(self) -> None:
        """Asks the functions of `follow`."""
        if self.look is not None:
            self.known["step"], self.known["doing"] = self.look()
        self.known["wait"] = self.wait() if self.wait is not None else ""

    def _write(self) -> None:
        if self.file is None:
            return
        known = self.state()
        text = json.dumps(known).encode()
        if len(text) > SIZE:  # a long error whose backslashes JSON doubles
            text = json.dumps(known | {"failed": known["failed"] | {"text": known["failed"]["text"][-2000:]}}).encode()
        with contextlib.suppress(OSError):
            os.pwrite(self.file, text.ljust(SIZE), 0)


def _is_waiting() -> bool:
    """Whether some other thread waits for other ranks."""
    mine = threading.get_ident()
    return any(_waits(frame) for thread, frame in sys._current_frames().items() if thread != mine)


def _waits(frame: FrameType) -> bool:
    code = frame.f_code
    if f"torch{os.sep}distributed" in code.co_filename:
        return True
    return bool(WAITS.search(linecache.getline(code.co_filename, frame.f_lineno or 0)))
