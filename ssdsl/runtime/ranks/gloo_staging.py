"""gloo for ranks on GPUs: tensors are copied through host memory.

gloo takes GPU tensors in some calls only, so every call works on a CPU copy. This is slow; it is meant for trying a
plan on fewer GPUs than it has devices.
"""

from typing import Any

import torch

from .transport import Ends, Merge, PendingWork, Rows, StartedExchange, Transport, Works


class Staged(Transport):
    """The transport of processes with a gloo group and tensors on GPUs."""

    def all_reduce(self, x: torch.Tensor, group: Any, merge: Merge = "sum") -> None:
        here = _copy(x)
        super().all_reduce(here, group, merge)
        x.copy_(here)

    def start_all_reduce(self, x: torch.Tensor, group: Any) -> PendingWork:
        here = _copy(x)
        return _arriving(super().start_all_reduce(here, group), here, x)

    def all_gather(self, into: torch.Tensor, x: torch.Tensor, group: Any) -> None:
        here = _empty(into)
        super().all_gather(here, _copy(x), group)
        into.copy_(here)

    def reduce_scatter(self, into: torch.Tensor, x: torch.Tensor, group: Any) -> None:
        here = _empty(into)
        super().reduce_scatter(here, _copy(x), group)
        into.copy_(here)

    def all_to_all(self, into: torch.Tensor, x: torch.Tensor, group: Any, rows: Rows | None = None) -> None:
        here = _empty(into)
        super().all_to_all(here, _copy(x), group, rows)
        into.copy_(here)

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


def _arriving(work: PendingWork, here: torch.Tensor, into: torch.Tensor) -> Works:
    """A receive into a CPU tensor that is then copied to the device."""
    return Works([work], then=lambda: into.copy_(here))


def _copy(x: torch.Tensor) -> torch.Tensor:
    return x.detach().to("cpu", copy=True)


def _empty(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, device="cpu")
