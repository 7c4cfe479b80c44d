"""The transport of one rank without others: its program runs, and all that it would be sent has whatever numbers."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ssdsl.runtime.ranks.transport import Ends, StartedExchange


class Alone:
    """Communication that does nothing and is done at once. Messages bring what is in their buffers, sums are this
    rank's addend, and what is gathered is zero: labels may be in it, which are then classes that there are."""

    def __init__(self, rank: int, size: int | None = None) -> None:
        self.rank, self.size = rank, rank + 1 if size is None else size

    def new_group(self, ranks: object = None) -> None:
        """No group."""

    def new_control_group(self) -> None:
        """No group."""

    def barrier(self) -> None:
        """Waits for nobody."""

    def wait(self) -> None:
        """Waits for nothing: a call is its own work."""

    def is_completed(self) -> bool:
        """True."""
        return True

    def _done(self, *args: Any) -> "Alone":
        return self

    start_all_reduce = start_reduce_scatter = start_all_to_all = start_broadcast = _done

    def start_all_gather(self, into: torch.Tensor, *args: Any) -> "Alone":
        """Fills `into` with zeros."""
        into.zero_()
        return self

    def start_exchange(self, into: Ends, parts: Ends, *args: Any) -> StartedExchange:
        """A work for each end."""
        return StartedExchange([self] * len(into), [self] * len(parts))

    def receiving(self) -> AbstractContextManager[None]:
        """A context without effect."""
        return nullcontext()
