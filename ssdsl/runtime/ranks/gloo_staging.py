"""gloo for ranks on GPUs: tensors are copied through host memory.

gloo takes GPU tensors in some calls only, so every call works on a CPU copy. This is slow; it is meant for trying a
plan on fewer GPUs than it has devices.
"""

from typing import Any

import torch

from .transport import Ends, Merge, PendingWork, Rows, StartedExchange, Transport, Works


class Staged(Transport):
    """The transport of processes with a gloo group and tensors on GPUs."""

    def start_all_reduce(self, x: torch.Tensor, group: Any, merge: Merge = "sum") -> PendingWork:
        here = _copy(x)
        return _arriving(super().start_all_reduce(here, group, merge), here, x)

    def start_all_gather(self, into: torch.Tensor, x: torch.Tensor, group: Any) -> PendingWork:
        here, leaves = _empty(into), _copy(x)
        return _arriving(super().start_all_gather(here, leaves, group), here, into, leaves)

    def start_reduce_scatter(self, into: torch.Tensor, x: torch.Tensor, group: Any) -> PendingWork:
        here, leaves = _empty(into), _copy(x)
        return _arriving(super().start_reduce_scatter(here, leaves, group), here, into, leaves)

    def start_all_to_all(
        self, into: torch.Tensor, x: torch.Tensor, group: Any, rows: Rows | None = None
    ) -> PendingWork:
        here, leaves = _empty(into), _copy(x)
        return _arriving(super().start_all_to_all(here, leaves, group, rows), here, into, leaves)

    def start_exchange(self, into: Ends, parts: Ends, group: Any, tag: int = 0) -> StartedExchange:
        here, copies = [(peer, _empty(x)) for peer, x in into], [(peer, _copy(x)) for peer, x in parts]
        started = super().start_exchange(here, copies, group, tag)
        ends = zip(started.arriving, here, into, strict=True)
        arriving = [_arriving(work, copy, x) for work, (_, copy), (_, x) in ends]
        return StartedExchange(arriving, [Works([work], copies) for work in started.leaving])

    def start_broadcast(self, x: torch.Tensor, source: int, group: Any) -> PendingWork:
        here = _copy(x) if source == self.rank else _empty(x)
        work = super().start_broadcast(here, source, group)
        return Works([work], here) if source == self.rank else _arriving(work, here, x)


def _arriving(work: PendingWork, here: torch.Tensor, into: torch.Tensor, leaves: torch.Tensor | None = None) -> Works:
    """A receive into a CPU tensor that is then copied to the device; meanwhile another one `leaves`."""
    return Works([work], leaves, lambda: into.copy_(here))


def _copy(x: torch.Tensor) -> torch.Tensor:
    return x.detach().to("cpu", copy=True)


def _empty(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, device="cpu")
