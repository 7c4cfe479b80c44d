"""A watchdog that ends leaves the process free to end: the store may be gone already, with rank 0."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import ssdsl.runtime.health.watchdog as watchdog_module
from ssdsl.runtime.health.heartbeat import Heartbeat
from ssdsl.runtime.health.torchrun_store import StatusStore
from ssdsl.runtime.health.watchdog import Watchdog

RANK = """
import sys, time
from pathlib import Path
from ssdsl.runtime.health.heartbeat import Heartbeat
from ssdsl.runtime.health.torchrun_store import StatusStore
from ssdsl.runtime.health.watchdog import Watchdog

StatusStore.put = lambda *_: None
folder = Path(sys.argv[1])
watchdog = Watchdog(Heartbeat(folder, 0), ranks=1, limit_s=1, folder=folder)
print("there", flush=True)
time.sleep(60)
"""
AGENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"


@pytest.mark.parametrize("variable", ["TORCHELASTIC_RUN_ID", "NO_TORCHRUN"])
def test_a_rank_ends_with_its_torchrun(variable: str, tmp_path: Path) -> None:
    """However that ends. A process that torchrun did not start may outlive the shell that did."""
    command = [sys.executable, "-c", AGENT, RANK, str(tmp_path)]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", variable: "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as agent:
        assert agent.stdout is not None and agent.stdout.readline() == "there\n"
        agent.kill()
    (rank,) = (int(p.parent.name) for p in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path) in _words(p))
    end = time.monotonic() + (1 if variable == "NO_TORCHRUN" else 60)
    while not (has_ended := str(tmp_path) not in _words(Path(f"/proc/{rank}/cmdline"))) and time.monotonic() < end:
        time.sleep(0.1)
    if variable == "NO_TORCHRUN":
        os.kill(rank, signal.SIGKILL)
    assert has_ended is (variable != "NO_TORCHRUN")
    assert has_ended is ("torchrun, which started it" in _words(tmp_path / "rank0.err"))


def _words(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process has ended; no rank has written it
        return ""


def test_a_rank_that_ends_at_once_asks_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")  # where nobody answers: asking would take seconds
    asked: list[str] = []
    monkeypatch.setattr(StatusStore, "put", lambda self, key, text: asked.append(key))
    heartbeat = Heartbeat(tmp_path, 0)
    watchdog = Watchdog(heartbeat, ranks=2, limit_s=60)
    heartbeat.end()
    watchdog.end()
    assert not asked


def test_one_that_was_heard_of_says_that_it_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    said: list[str] = []
    monkeypatch.setattr(StatusStore, "put", lambda self, key, text: said.append(key))
    monkeypatch.setattr(StatusStore, "is_open", True)
    heartbeat = Heartbeat(tmp_path, 1)
    watchdog = Watchdog(heartbeat, ranks=2, limit_s=60)
    heartbeat.end()
    watchdog.end()
    assert said == ["rank1"]


def test_its_thread_has_ended_where_it_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that still asks the store while Python ends would abort the process."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    asking = threading.Event()

    def put(self: StatusStore, key: str, text: str) -> None:
        asking.set()
        time.sleep(0.3)

    monkeypatch.setattr(StatusStore, "put", put)
    monkeypatch.setattr(watchdog_module, "BEAT_S", 0.01)
    watchdog = Watchdog(Heartbeat(tmp_path, 0), ranks=2, limit_s=60)
    assert asking.wait(60)
    watchdog.end()
    assert not watchdog.thread.is_alive()


@pytest.mark.slow
def test_its_thread_has_ended_where_nobody_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A connection that fails takes up to thrice the patience that it was given."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setattr(watchdog_module, "BEAT_S", 0.01)
    watchdog = Watchdog(Heartbeat(tmp_path, 0), ranks=2, limit_s=60)
    time.sleep(0.5)
    watchdog.end()
    assert not watchdog.thread.is_alive()
