"""The kind of a user's data: a data set with keys, a stream, or a DataLoader with arguments of its own."""

from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from ..errors import EngineError


def is_stream(dataset: Any, sampler: Any, batch_sampler: Any) -> bool:
    """Whether a data set is iterable and not map-style."""
    if isinstance(dataset, IterableDataset):
        return True
    if hasattr(dataset, "__getitem__"):
        if hasattr(dataset, "__len__") or sampler is not None or batch_sampler is not None:
            return False
        raise EngineError(f"{type(dataset).__name__} has no __len__", "define it, or give a sampler")
    if hasattr(dataset, "__iter__"):
        return True
    raise EngineError(f"{type(dataset).__name__} is no data set", "give it __getitem__ and __len__, or __iter__")


def arguments_of(loader: "DataLoader[Any]") -> tuple[int | None, Any, Any]:
    """A DataLoader's batch size, sampler and batch sampler, as arguments of a Loader."""
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        sampler = None if isinstance(loader.dataset, IterableDataset) else loader.sampler
        return loader.batch_size, sampler, None
    return loader.batch_size, None, loader.batch_sampler
