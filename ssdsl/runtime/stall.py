"""Which rank keeps the others waiting, found from what each wrote down of itself."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BEATS_S = 3.0  # a rank that wrote nothing for so long is not running
START_S = 60.0  # loading torch takes seconds, and minutes from a slow disk: a short limit does not count for it

State = dict[str, Any]


@dataclass(frozen=True)
class Stall:
    """The rank that does not move. `how` says what is known of it; `waiting` describes those that wait."""

    rank: int
    role: str
    doing: str
    since_s: float
    how: str
    waiting: tuple[str, ...]


def read_states(folder: Path) -> dict[int, State]:
    """What every rank wrote last; one that writes at this moment may be missing."""
    found = {}
    for path in folder.glob("rank*.state"):
        try:
            state = json.loads(path.read_bytes())
        except (OSError, ValueError):
            continue
        found[int(state["rank"])] = state
    return found


def find_stall(states: dict[int, State], ranks: int, started: float, limit_s: float, now: float) -> Stall | None:
    """The rank at fault, once it has not moved for the limit.

    That is a rank that wrote nothing, or else one that waits for nobody; if all wait, the one that does so longest.
    A rank that waits for one that moves is not at fault, however long it waits.
    """
    missing = [rank for rank in range(ranks) if rank not in states]
    if missing:
        since = now - started
        waiting = tuple(_waiting(s, now) for s in states.values())
        how = "it has not started"
        return Stall(missing[0], "", "starting", since, how, waiting) if since > max(limit_s, START_S) else None
    alive = [s for s in states.values() if not s["ended"] and s["failed"] is None]
    silent = [s for s in alive if now - s["beat"] > BEATS_S]
    busy = [s for s in alive if not s["waits"]]
    at_fault = min(silent or busy or alive, key=lambda s: (s["since"], s["rank"]), default=None)
    if at_fault is None or now - at_fault["since"] < limit_s or (silent and now - at_fault["beat"] < limit_s):
        return None
    if not silent and any(now - s["since"] < limit_s for s in busy):
        return None  # another one still works: it may be the one that all wait for
    how = _how(at_fault, bool(silent), bool(busy))
    waiting = tuple(_waiting(s, now) for s in alive if s is not at_fault and s["waits"])
    return Stall(at_fault["rank"], at_fault["role"], place(at_fault), now - at_fault["since"], how, waiting)


def _how(state: State, silent: bool, busy: bool) -> str:
    if silent:
        return (
            "its process is stopped, by a signal or a debugger"
            if _is_stopped(state["pid"])
            else "its process does not run, or cannot be reached"
        )
    if busy:
        return "it works, or hangs, and waits for no other rank"
    return "it waits for other ranks, and so do all: they wait for each other"


def place(state: State) -> str:
    """Where a rank is, in words: `step 3, forward of block 2 at [0] (role_gpus.py, line 31)`."""
    step = f"step {state['step']}, " if state["step"] is not None else ""
    return f"{step}{state['doing']}" + (f" ({state['line']})" if state["line"] else "")


def _waiting(state: State, now: float) -> str:
    return f"rank {state['rank']} since {now - state['since']:.0f} s in {place(state)}"


def _is_stopped(pid: int) -> bool:
    """Whether a process of this machine is stopped (state T of Linux)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def stall_in(folder: Path, ranks: int, started: float, limit_s: float) -> Stall | None:
    """The rank at fault by the files in a folder."""
    return find_stall(read_states(folder), ranks, started, limit_s, time.time())
