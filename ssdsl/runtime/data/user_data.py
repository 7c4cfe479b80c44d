"""Loads the data of `--data file.py:function`: calls the function in the user's file, and sets up its loading."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from ..program.user_module import import_file
from .rank_dataset import blamed

PREFIX = "ssdsl_data_"  # in the name under which the file is imported


class CalledEachEpoch:
    """An iterable that calls the function again for every epoch, because its result (a generator) can be read only
    once."""

    def __init__(self, function: Callable[[], Iterator[Any]]) -> None:
        self.function = function

    def __iter__(self) -> Iterator[Any]:
        return iter(self.function())


def load_data(spec: str) -> Any:
    """The result of the user's function. Raises EngineError."""
    path, _, function = spec.rpartition(":")
    file = Path(path)
    with blamed(f"`--data {spec}`", "correct the file"):
        return data_of(getattr(import_file(file, f"{PREFIX}{file.stem}"), function))


def data_of(function: Callable[[], Any]) -> Any:
    """The function's result, called anew for every epoch if the result can be read only once."""
    data = function()
    return CalledEachEpoch(function) if isinstance(data, Iterator) else data


def loader_arguments(data: Any, samples: int, evaluate: bool = False) -> dict[str, Any]:
    """Arguments of a Loader for this data: a map-style data set is shuffled for training, a stream keeps its order,
    anything else yields batches.

    >>> loader_arguments([], 8)
    {'batch_size': None}
    """
    if isinstance(data, DataLoader):  # a DataLoader has its own
        return {"batch_size": data.batch_size}
    if isinstance(data, IterableDataset):
        return {"batch_size": samples}
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, list | tuple):
        return {"batch_size": samples, "shuffle": not evaluate}
    return {"batch_size": None}
