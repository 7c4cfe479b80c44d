"""Watchdog: ends this rank, with a report, when a rank of the run has not moved for too long.

Each rank writes its status to a store that all nodes can read. A rank that has waited for almost the limit reads the
statuses of the others, finds the rank that keeps them waiting, reports it and ends; the launcher then ends the rest.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from ..program.codec import from_json, to_json
from .heartbeat import Heartbeat, attempt
from .stall import BEATS_S, StalledRank, State, find_stall
from .torchrun_store import PATIENCE_S, StatusStore

BEAT_S = 1.0
LOOK_S = 2 * BEATS_S  # a rank begins to read the others' status so long before the limit
VERDICT = "verdict"

TORCHRUN = "TORCHELASTIC_RUN_ID"  # a variable of each rank that torchrun has started
RUN = (TORCHRUN, "MASTER_PORT", "SLURM_JOB_ID")  # variables that only processes of one run share


@dataclass(frozen=True)
class Verdict:
    """Why a rank has ended the run: another rank hangs (`stall`), or it has itself `failed` with this text."""

    by: int
    stall: StalledRank | None = None
    failed: str = ""


class Watchdog:
    """Checks all ranks from a thread of its own. `folder`, if given, gets this rank's report."""

    def __init__(self, heartbeat: Heartbeat, ranks: int, limit_s: float, folder: Path | None = None) -> None:
        self.heartbeat, self.ranks, self.limit_s, self.folder = heartbeat, ranks, limit_s, folder
        self.rank = int(heartbeat.known["rank"])
        self.store = StatusStore(f"joining {attempt()}")
        self.started = time.time()
        self.seen: dict[int, tuple[State, float]] = {}  # the last status of each rank, and its arrival
        self.parent = os.getppid()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True, name="watchdog")
        self.thread.start()

    def use_attempt(self, name: str) -> None:
        """Moves to the store of this attempt, once all ranks have joined it."""
        self.store = StatusStore(name)

    def end(self) -> None:
        """Stops checking: the rank has finished, or fails by itself.

        A thread that asks the store while Python ends would abort the process, so it is waited for. It may take
        longer than the store's patience, because torch tries again to connect where nobody answers.
        """
        self.over.set()
        self.thread.join(3 * PATIENCE_S)
        if self.store.is_open:  # else no status was sent, and the store may have ended with rank 0
            self._put(self.heartbeat.state(), 0.0)

    def verdict(self) -> StalledRank | str | None:
        """Why another rank has ended the run: the hanging rank, or the failed rank's text. None if none has."""
        with contextlib.suppress(RuntimeError):
            if (found := self.store.get(VERDICT)) is not None:
                note = from_json(Verdict, found)
                return note.stall or note.failed
        return None

    def failed(self, text: str) -> None:
        """Tells the others why they will lose this rank."""
        with contextlib.suppress(RuntimeError):
            self.store.set_if_absent(VERDICT, to_json(Verdict(self.rank, failed=text)))

    def _run(self) -> None:
        while not self.over.wait(min(BEAT_S, self.limit_s / 4)):
            if TORCHRUN in os.environ and os.getppid() != self.parent:
                self._end("torchrun, which started it, has ended")
            state = self.heartbeat.state()
            idle_s = state["beat"] - state["since"]
            reachable = self._put(state, idle_s)
            if idle_s > self.limit_s - LOOK_S:
                found = self._look(state) if reachable else self._unreachable(state, idle_s)
                if found is not None and not self.over.is_set():
                    self._leave(found)

    def _put(self, state: State, idle_s: float) -> bool:
        """Writes this rank's status to the store. False if the store cannot be reached."""
        try:
            self.store.put(f"rank{self.rank}", json.dumps(state | {"idle_s": idle_s}))
        except RuntimeError:
            return False
        return True

    def _look(self, mine: State) -> StalledRank | None:
        """The rank at fault, or None. Only this node's clock counts, because clocks of nodes differ.

        While a rank's status is late but not yet overdue, there is no verdict: that rank may be the one at fault.
        """
        now = time.time()
        for rank in range(self.ranks):
            said = self.store.get(f"rank{rank}")
            if said is None:
                continue
            state = json.loads(said)
            if rank not in self.seen or self.seen[rank][0]["beat"] != state["beat"]:
                self.seen[rank] = state, now
        if any(2 * BEAT_S < now - at <= BEATS_S for state, at in self.seen.values() if not state["ended"]):
            return None
        states = {rank: _here(state, at, mine, now) for rank, (state, at) in self.seen.items()}
        return find_stall(states, range(self.ranks), self.started, self.limit_s, now)

    def _unreachable(self, mine: State, idle_s: float) -> StalledRank | None:
        """The stall if the store cannot be reached: the fault is at rank 0's node, where the store runs."""
        if idle_s < self.limit_s:
            return None
        how = f"nothing answers at {self.store.host}:{self.store.port}, on its node"
        waiting = f"rank {self.rank} since {idle_s:.0f} s in {mine['doing']}"
        return StalledRank(0, "", "an unknown place", idle_s, how, (waiting,) if self.rank else ())

    def _end(self, why: str) -> None:
        """Reports why this rank ends, and ends the process: nothing else would, where torchrun was killed."""
        report(self.heartbeat, f"rank {self.rank} ends, because {why}", self.folder)
        os._exit(1)

    def _leave(self, stall: StalledRank) -> None:
        """Reports the stall, in full on one rank only, and ends the process, whose main thread would wait for ever."""
        note = to_json(Verdict(self.rank, stall))
        with contextlib.suppress(RuntimeError):
            note = self.store.set_if_absent(VERDICT, note)
        first = from_json(Verdict, note)
        found = first.stall or stall
        report_stall(self.heartbeat, found, self.folder, whole=first.by == self.rank)
        if found.process is not None:
            _end_silent(found.process, found.rank)
        os._exit(1)


def report_stall(heartbeat: Heartbeat, stall: StalledRank, folder: Path | None, *, whole: bool) -> None:
    """Reports, on stderr and in the rank's files, which rank keeps this one waiting."""
    rank = heartbeat.known["rank"]
    text = stall.text() if whole else stall.text().partition("\n")[0]
    report(heartbeat, f"rank {rank} ends, because " + text.replace("\n", "\n  "), folder, stall)


def report(heartbeat: Heartbeat, message: str, folder: Path | None, stall: StalledRank | None = None) -> None:
    """Reports, on stderr and in the rank's files, why this rank ends."""
    heartbeat.failed(message, stall=None if stall is None else asdict(stall))
    with contextlib.suppress(OSError):
        if folder is not None:
            (folder / f"rank{heartbeat.known['rank']}.err").write_text(message)
        print(message, file=sys.stderr, flush=True)


def _end_silent(process: tuple[str, int], rank: int) -> None:
    """Kills a rank of this run on this machine that stopped responding: nothing else would end it."""
    host, pid = process
    if host != socket.gethostname():
        return
    with contextlib.suppress(OSError):
        found, mine = _environment(str(pid)), _environment("self")
        is_rank = any(found.get(name) == str(rank) for name in ("RANK", "SLURM_PROCID"))
        if is_rank and all(found.get(name) == mine.get(name) for name in RUN):
            os.kill(pid, signal.SIGKILL)


def _environment(pid: str) -> dict[str, str]:
    """The environment of a process, on Linux."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


def _here(state: State, at: float, mine: State, now: float) -> State:
    """A rank's status with times of this node's clock. A rank that sends nothing new counts as still for at least as
    long as this rank has waited."""
    since = at - state["idle_s"]
    if now - at > BEATS_S:
        since = min(since, mine["since"])
        return state | {"since": since, "beat": since}
    return state | {"since": since, "beat": at}
