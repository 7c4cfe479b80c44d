"""The data of `--data file.py:function`: what the function in the user's own file returns, and how it is loaded."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from ..control import Control
from ..errors import EngineError
from .feed import Feed
from .fetch import raised
from .loader import Loader

PREFIX = "ssdsl_data_"  # of the name under which the file is imported


class Again:
    """What a function returns only once, such as a generator, for every epoch anew."""

    def __init__(self, function: Callable[[], Iterator[Any]]) -> None:
        self.function = function

    def __iter__(self) -> Iterator[Any]:
        return iter(self.function())


def open_data(spec: str, feed: Feed, control: Control, seed: int) -> Loader:
    """A loader of what `path/to/file.py:function` returns: a data set, a DataLoader, or an iterable of batches.

    Raises EngineError, on all ranks, where there is no such function, or it raises.
    """
    data, error = None, None
    try:
        data = load_data(spec)
    except EngineError as found:
        error = str(found)
    control.vote(error)
    return Loader(data, feed, control, seed=seed, **loader_arguments(data, feed.samples))


def load_data(spec: str) -> Any:
    """What the function returns. Raises EngineError."""
    path, _, function = spec.rpartition(":")
    try:
        return data_of(getattr(import_file(Path(path)), function))
    except Exception as error:
        raise EngineError(f"`--data {spec}` raised {raised(error)}", "correct the file") from error


def data_of(function: Callable[[], Any]) -> Any:
    """What a function returns; it is called for every epoch where that can be used only once."""
    data = function()
    return Again(function) if isinstance(data, Iterator) else data


def loader_arguments(data: Any, samples: int) -> dict[str, Any]:
    """How a Loader takes it: a map-style data set is shuffled, a stream comes in its order, the rest are batches.

    >>> loader_arguments([], 8)
    {'batch_size': None}
    """
    if isinstance(data, DataLoader):  # says itself
        return {"batch_size": data.batch_size}
    if isinstance(data, IterableDataset):
        return {"batch_size": samples}
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, list | tuple):
        return {"batch_size": samples, "shuffle": True}
    return {"batch_size": None}


def import_file(path: Path) -> ModuleType:
    """Runs a file as a module of its own; its folder comes first on the path, as when Python runs a script."""
    sys.path.insert(0, str(path.resolve().parent))
    found = importlib.util.spec_from_file_location(f"{PREFIX}{path.stem}", path.resolve())
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module
