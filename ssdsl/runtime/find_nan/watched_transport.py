"""A transport that tells the rank's `Watch` what goes to other ranks, and what comes of it.

Both ends of a communication number it alike: all ranks of a group make the same calls in the same order, and messages
between two ranks arrive in the order of their tag.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..ranks.transport import Ends, Merge, PendingWork, Rows, StartedExchange
from ..ranks.world import GroupCall
from .watch import Watch


@dataclass(frozen=True)
class WatchedWork:
    """Communication that has been started; `then` looks at what came of it."""

    work: Any
    watch: Watch
    then: Callable[[], None]

    def wait(self) -> None:
        """Blocks until it is done."""
        with self.watch.paused():
            self.work.wait()
        self.then()

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        return bool(self.work.is_completed())


class WatchedTransport:
    """The calls of `inner` that carry tensors of a step; others are its own."""

    def __init__(self, inner: Any, watch: Watch) -> None:
        self.inner, self.watch = inner, watch
        self._calls = Counter[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def start_all_reduce(self, x: torch.Tensor, group: Any, merge: Merge = "sum") -> PendingWork:
        """Starts to replace `x` by its sum, or maximum."""
        return self._started(x, x, lambda: self.inner.start_all_reduce(x, group, merge))

    def start_all_gather(self, into: torch.Tensor, x: torch.Tensor, group: Any) -> PendingWork:
        """Starts to fill `into` with the ranks' `x`."""
        return self._started(into, x, lambda: self.inner.start_all_gather(into, x, group))

    def start_reduce_scatter(self, into: torch.Tensor, x: torch.Tensor, group: Any) -> PendingWork:
        """Starts to fill `into` with this rank's part of the sum."""
        return self._started(into, x, lambda: self.inner.start_reduce_scatter(into, x, group))

    def start_all_to_all(
        self, into: torch.Tensor, x: torch.Tensor, group: Any, rows: Rows | None = None
    ) -> PendingWork:
        """Starts to transpose parts over ranks."""
        return self._started(into, x, lambda: self.inner.start_all_to_all(into, x, group, rows))

    def start_exchange(self, into: Ends, parts: Ends, group: Any, tag: int = 0) -> StartedExchange:
        """Starts to send parts, and to fill `into`."""
        channel, by = self._channel(f"tag {tag}")
        me = self.inner.rank
        for peer, x in parts:
            self.watch.leaves(self._numbered(f"{channel}: {me} to {peer}"), x)
        keys = [self._numbered(f"{channel}: {peer} to {me}") for peer, _ in into]
        with self.watch.paused():
            started = self.inner.start_exchange(into, parts, group, tag)
        arriving = [
            WatchedWork(work, self.watch, self._then(key, x, by))
            for work, key, (_, x) in zip(started.arriving, keys, into, strict=True)
        ]
        leaving = [WatchedWork(work, self.watch, lambda: None) for work in started.leaving]
        return StartedExchange(arriving, leaving)

    def start_broadcast(self, x: torch.Tensor, source: int, group: Any) -> PendingWork:
        """Starts to fill `x` with that of the rank `source`."""
        known = self.watch.world.broadcasts.items()
        ranks = next((ranks for ranks, made in known if made is not None and made.process_group is group), ())
        key = self._numbered(f"broadcast of {source} among {ranks}")
        if source == self.inner.rank:
            self.watch.leaves(key, x)
        with self.watch.paused():
            work = self.inner.start_broadcast(x, source, group)
        return WatchedWork(work, self.watch, self._then(key, x, "a broadcast"))

    def _started(self, into: torch.Tensor, x: torch.Tensor, start: Callable[[], PendingWork]) -> PendingWork:
        key, by = self._named()
        self.watch.leaves(key, x)
        with self.watch.paused():
            work = start()
        return WatchedWork(work, self.watch, self._then(key, into, by))

    def _then(self, key: str, x: torch.Tensor, by: str) -> Callable[[], None]:
        return lambda: self.watch.arrives(key, x, by)

    def _named(self) -> tuple[str, str]:
        """The key of a collective, and what it is for."""
        channel, by = self._channel("")
        return self._numbered(channel), by

    def _channel(self, otherwise: str) -> tuple[str, str]:
        """The name of a group whose ranks make the same calls, and what the running call is for. `otherwise`: the name
        if the rank is in no call of a group, but sends a message."""
        match self.watch.world.call:
            case GroupCall() as call:
                known = self.watch.world.groups.items()
                named = next((axes for axes, made in known if made is call.group), call.group.name)
                return f"{named} {call.group.ranks}", self.watch.sites.started(self.watch.world)
            case _:
                return otherwise, "a message"

    def _numbered(self, channel: str) -> str:
        """The channel with the number of its calls so far."""
        self._calls[channel] += 1
        return f"{channel} #{self._calls[channel]}"
