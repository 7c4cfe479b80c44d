"""Ranks as threads of this process, for what all ranks do alike."""

from collections.abc import Callable
from typing import Any

from ssdsl.run.in_process.mailbox import Mailboxes, Threaded
from ssdsl.run.in_process.run_in_process import RanksFailed, Turns
from ssdsl.runtime.ranks.control import Control


def together(count: int, body: Callable[[Control], Any]) -> list[Any]:
    """What `body` returns on each rank."""
    return on_ranks(count, lambda transport: body(Control(transport)))


def on_ranks(count: int, body: Callable[[Threaded], Any]) -> list[Any]:
    """The same of a body that is given its transport."""
    turns = Turns()
    exchange = Mailboxes(count, turns.wait, RanksFailed)
    found: dict[int, Any] = {}

    def run(rank: int) -> None:
        found[rank] = body(Threaded(rank, exchange))

    turns.run([lambda rank=rank: run(rank) for rank in range(count)])  # type: ignore[misc]
    exchange.check_empty()
    return [found[rank] for rank in range(count)]
