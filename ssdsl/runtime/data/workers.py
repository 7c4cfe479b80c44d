"""The processes that load data: those of DataLoader, with its own arguments."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
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
        options = {**vars(self), "persistent_workers": self.persistent_workers and jobs is not None}
        options["worker_init_fn"] = _Start(self.worker_init_fn)
        draws = torch.Generator()  # DataLoader draws from it; the global generator belongs to the user
        return DataLoader(dataset, batch_size=None, sampler=jobs, collate_fn=_as_it_is, generator=draws, **options)

    @classmethod
    def of(cls, loader: "DataLoader[Any]") -> "Workers":
        """The workers of an existing DataLoader."""
        return cls(**{field.name: getattr(loader, field.name) for field in fields(cls)})


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
