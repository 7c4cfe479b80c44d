"""The processes that load data: those of DataLoader, with its own arguments."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

from .rank_dataset import BatchRequest, LoadedBatch


@dataclass(frozen=True)
class Workers:
    """The number of worker processes, and DataLoader's other arguments for them."""

    num_workers: int = 0
    pin_memory: bool = False
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None

    def loader(self, dataset: Any, jobs: Iterable[BatchRequest] | None) -> "DataLoader[LoadedBatch]":
        """A DataLoader that yields each item as the data set makes it."""
        return DataLoader(
            dataset,
            batch_size=None,
            sampler=jobs,
            collate_fn=_as_it_is,
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
            prefetch_factor=self.prefetch_factor,
            persistent_workers=self.persistent_workers and jobs is not None,
            timeout=self.timeout,
            worker_init_fn=_Start(self.worker_init_fn),
            multiprocessing_context=self.multiprocessing_context,
            generator=torch.Generator(),  # DataLoader draws from it; the global generator belongs to the user
        )

    @classmethod
    def of(cls, loader: "DataLoader[Any]") -> "Workers":
        """The workers of an existing DataLoader."""
        return cls(
            loader.num_workers,
            loader.pin_memory,
            loader.prefetch_factor,
            loader.persistent_workers,
            loader.timeout,
            loader.worker_init_fn,
            loader.multiprocessing_context,
        )


def _as_it_is(item: Any) -> Any:
    return item


class _Start:
    """Runs first in a worker: calls the user's own function, to which `get_worker_info()` shows the user's data set."""

    def __init__(self, function: Callable[[int], None] | None) -> None:
        self.function = function

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)
        if self.function is not None:
            self.function(worker)
