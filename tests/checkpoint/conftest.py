"""Ranks that are threads, with the words that saving and loading need between them, and nothing else."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.ranks.control import Control


@dataclass
class Table:
    """Where the ranks meet: what each brings to the round."""

    size: int
    barrier: threading.Barrier = field(init=False)
    brought: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size, timeout=60)


@dataclass
class Together:
    """What one rank says to the others. A rank that goes away lets the others fail, as a broken connection does."""

    table: Table
    rank: int

    @property
    def size(self) -> int:
        return self.table.size

    def all(self, payload: Any) -> list[Any]:
        try:
            self.table.brought[self.rank] = payload
            self.table.barrier.wait()
            found = [self.table.brought[r] for r in range(self.size)]
            self.table.barrier.wait()
        except threading.BrokenBarrierError:
            raise RuntimeError("connection closed by peer") from None
        return found

    def vote(self, error: str | None = None) -> bool:
        said = [text for text in self.all(error) if text is not None]
        if said:
            raise EngineError("\n".join(dict.fromkeys(said)))
        return True

    together = Control.together

    def gather(self, payload: bytes) -> list[bytes] | None:
        found = self.all(payload)
        return found if self.rank == 0 else None

    def broadcast(self, payload: bytes | None) -> bytes:
        found = self.all(payload)[0]
        assert isinstance(found, bytes)
        return found


def together(size: int, work: Callable[[Together], Any]) -> list[Any]:
    """What each rank's work gives, or the error that it raises."""
    table, found = Table(size), [None] * size

    def run(rank: int) -> None:
        try:
            found[rank] = work(Together(table, rank))
        except BaseException as error:
            found[rank] = error  # type: ignore[call-overload]
            if not isinstance(error, EngineError):
                table.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
