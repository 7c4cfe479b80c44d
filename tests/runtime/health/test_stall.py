"""Which rank is at fault, from what each wrote of itself."""

import os
import signal
import socket
import subprocess
import sys
from typing import Any

from ssdsl.runtime.health.stall import StalledRank, find_stall

NOW, LIMIT = 1000.0, 60.0


def state(rank: int, **known: Any) -> dict[str, Any]:
    """A rank that waits since long, unless something else is said."""
    usual = {
        "rank": rank,
        "pid": 0,
        "host": "",
        "attempt": 0,
        "wait": "",
        "role": "gpus",
        "step": 3,
        "doing": "backward of block 1 at [0]",
        "line": "",
    }
    times = {"since": NOW - 100, "beat": NOW - 0.3}
    return usual | times | {"waits": True, "failed": None, "ended": False} | known


def stall(*states: dict[str, Any], ranks: int = 0) -> StalledRank | None:
    return find_stall({s["rank"]: s for s in states}, range(ranks or len(states)), NOW - 500, LIMIT, NOW)


def test_the_one_that_writes_nothing() -> None:
    found = stall(state(0), state(1, beat=NOW - 90, since=NOW - 91), state(2))
    assert found is not None and found.rank == 1 and "does not run" in found.how
    assert found.waiting[0] == "rank 0 since 100 s in step 3, backward of block 1 at [0]"


def test_the_one_that_waits_for_nobody() -> None:
    found = stall(state(0), state(1), state(2, waits=False, line="role_gpus.py, line 31"))
    assert found is not None and found.rank == 2 and "waits for no other rank" in found.how
    assert found.doing.endswith("(role_gpus.py, line 31)") and len(found.waiting) == 2


def test_the_one_that_is_stopped_though_it_wrote_a_moment_ago() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        found = stall(state(0), state(1, waits=False, pid=process.pid, host=socket.gethostname()))
        process.kill()
    assert found is not None and found.rank == 1 and "is stopped" in found.how


def test_all_wait() -> None:
    found = stall(state(0), state(1, since=NOW - 200))
    assert found is not None and found.rank == 1 and "wait for each other" in found.how


def test_waiting_for_one_that_works_is_no_stall() -> None:
    assert stall(state(0), state(1, waits=False, since=NOW - 5)) is None
    assert stall(state(0), state(1, waits=False), state(2, waits=False, since=NOW - 5)) is None


def test_a_moment_of_silence_is_no_stall() -> None:
    assert stall(state(0), state(1, beat=NOW - 10, since=NOW - 100)) is None


def test_one_that_never_started() -> None:
    found = stall(state(0), ranks=2)
    assert found is not None and found.rank == 1 and found.how == "it has not started"


def test_those_that_ended_are_left_out() -> None:
    assert stall(state(0, ended=True), state(1, ended=True)) is None
