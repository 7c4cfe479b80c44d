"""What a recorded run measures of the network alone."""

from collections.abc import Callable
from typing import Any

import pytest

from ssdsl.run.in_process.run_in_process import run_ranks
from ssdsl.runtime.profile import recorder
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.train.engine import Engine
from tests.train.conftest import on_ranks


def test_numbers_of_ranks_that_divide_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ranks share 255 of 256 numbers."""
    monkeypatch.setattr(recorder, "SIZES", (1 << 10,))

    def measured(world: World, _: Callable[[Callable[[], str]], None]) -> list[Any]:
        return [timed[:3] for timed in recorder.time_network(world)]

    first, _, last = run_ranks(3, measured)
    assert last == [(kind, 3, 1020) for kind in recorder.KINDS if kind != "send"]
    assert first == [(kind, 2, 1024) for kind in recorder.KINDS] + last


def test_a_rank_without_work_has_no_messages() -> None:
    def measured(engine: Engine) -> list[str]:
        runner = engine.training.runner
        return list(recorder.time_messages(runner.messages, len(engine.table.messages), runner.mover))

    sends, idle, receives = on_ranks("idle", measured)
    assert idle == [] and "0.bwd" in sends and "0.fwd" in receives
