"""Finds the rank that keeps the others waiting, from the status that each rank wrote."""

import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BEATS_S = 3.0  # a rank that wrote nothing for so long does not run
MANY = 8
START_SILENT_S = 15.0  # with many processes on few processors, starting ranks do not write for seconds
START_S = 60.0  # loading and the first step may take minutes: a shorter `--timeout` applies only after them

State = dict[str, Any]


@dataclass(frozen=True)
class StalledRank:
    """The rank that does not move. `how` says what is known about it; `waiting` describes the ranks that wait.

    `process` is its host and process id, if it has stopped writing its status.
    """

    rank: int
    role: str
    doing: str
    since_s: float
    how: str
    waiting: tuple[str, ...]
    process: tuple[str, int] | None = None

    @property
    def where(self) -> str:
        """The place where the rank is, or was when it last wrote its status."""
        return f"{'it is in' if self.process is None else 'it was last seen in'} {self.doing}"

    def text(self, ranks: int = MANY) -> str:
        """The whole report, with at most so many waiting ranks."""
        role = f", role {self.role}," if self.role else ""
        lines = [f"rank {self.rank}{role} has not moved for {self.since_s:.0f} s: {self.how}", self.where]
        if self.waiting:
            lines += ["these wait for others:", *self.waiting[:ranks]]
        if len(self.waiting) > ranks:
            lines.append(f"and {len(self.waiting) - ranks} more")
        return "\n".join(lines)


def read_states(folder: Path) -> dict[int, State]:
    """The last status of every rank; a rank that is writing now may be missing.

    Statuses from before a restart are left out.
    """
    found = {}
    for path in folder.glob("rank*.state"):
        try:
            state = json.loads(path.read_bytes())
        except (OSError, ValueError):
            continue
        found[int(state["rank"])] = state
    latest = max((state["attempt"] for state in found.values()), default=0)
    return {rank: state for rank, state in found.items() if state["attempt"] == latest}


def find_stall(
    states: dict[int, State], ranks: range, started: float, limit_s: float, now: float
) -> StalledRank | None:
    """The rank at fault, once it has not moved for the limit; else None.

    It is a rank that stopped writing; else one that waits for nobody; and if all wait, the one that has waited longest.
    A rank that waits for a moving rank is not at fault, however long it waits.
    """
    missing = [rank for rank in ranks if rank not in states]
    if missing:
        since = now - started
        waiting = tuple(_waiting(s, now) for s in states.values())
        how = "it has not started"
        return StalledRank(missing[0], "", "starting", since, how, waiting) if since > max(limit_s, START_S) else None
    alive = [s for _, s in sorted(states.items()) if not s["ended"] and s["failed"] is None]
    silent = [s for s in alive if now - s["beat"] > BEATS_S]
    busy = [s for s in alive if not s["waits"]]
    at_fault = min(silent or busy or alive, key=lambda s: (s["since"], s["rank"]), default=None)
    if at_fault is not None and not at_fault["step"]:  # it loads its weights, or is in its first step
        limit_s = max(limit_s, START_SILENT_S if silent else START_S)
    if at_fault is None or now - at_fault["since"] < limit_s or (silent and now - at_fault["beat"] < limit_s):
        return None
    if not silent and any(now - s["since"] < limit_s for s in busy):
        return None  # another one still works: it may be the one that all wait for
    how = _how(at_fault, bool(silent), bool(busy))
    waiting = tuple(_waiting(s, now) for s in alive if s is not at_fault and s["waits"])
    process = (at_fault["host"], at_fault["pid"]) if silent else None
    return StalledRank(
        at_fault["rank"], at_fault["role"], place(at_fault), now - at_fault["since"], how, waiting, process
    )


def _how(state: State, silent: bool, busy: bool) -> str:
    if state["host"] == socket.gethostname() and process_state(state["pid"]) in ("T", "t"):
        return "its process is stopped, by a signal or a debugger"
    if silent:
        return "its process does not run, or cannot be reached"
    if busy:
        return "it works, or hangs, and waits for no other rank"
    return "it waits for other ranks, and so do all: they wait for each other"


def place(state: State) -> str:
    """The place of a rank in words: `step 3, forward of block 2 at [0] (role_gpus.py, line 31): all_reduce over tp`."""
    step = f"step {state['step']}, " if state["step"] is not None else ""
    line = f" ({state['line']})" if state["line"] else ""
    return f"{step}{state['doing']}{line}" + (f": {state['wait']}" if state["wait"] else "")


def _waiting(state: State, now: float) -> str:
    return f"rank {state['rank']} since {now - state['since']:.0f} s in {place(state)}"


def process_state(pid: int) -> str:
    """Linux's letter for the state of a process of this machine, such as T if it is stopped and Z if it has ended; ""
    if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
