"""A watch that ends leaves the process free to end: the board's store may be gone already, with rank 0."""

from pathlib import Path

import pytest

from ssdsl.runtime.health.heartbeat import Heartbeat
from ssdsl.runtime.health.status_store import StatusStore
from ssdsl.runtime.health.watchdog import Watchdog


def test_a_rank_that_ends_at_once_asks_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")  # where nobody answers: asking would take seconds
    asked: list[str] = []
    monkeypatch.setattr(StatusStore, "put", lambda self, key, text: asked.append(key))
    pulse = Heartbeat(tmp_path, 0)
    watch = Watchdog(pulse, ranks=2, limit_s=60)
    pulse.end()
    watch.end()
    assert not asked


def test_one_that_was_heard_of_says_that_it_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    said: list[str] = []
    monkeypatch.setattr(StatusStore, "put", lambda self, key, text: said.append(key))
    monkeypatch.setattr(StatusStore, "is_open", True)
    pulse = Heartbeat(tmp_path, 1)
    watch = Watchdog(pulse, ranks=2, limit_s=60)
    pulse.end()
    watch.end()
    assert said == ["rank1"]
