"""Data sets, and plans as far as a loader knows them: which part of a batch each rank needs."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from ssdsl.record import replace
from ssdsl.runtime.data.batch_spec import BatchSpec
from ssdsl.runtime.layout.cut import Piece
from ssdsl.runtime.program.table import BatchInput

BATCH, LENGTH = 8, 6
TABLE = {"x": BatchInput((BATCH, LENGTH), "float32", ()), "y": BatchInput((BATCH,), "int64", ())}
X, Y = (BATCH, LENGTH), (BATCH,)


def table(samples: int) -> dict[str, BatchInput]:
    """The inputs of a program for this many samples."""
    return {name: replace(entry, shape=(samples, *entry.shape[1:])) for name, entry in TABLE.items()}


def feeds(plan: str, samples: int = BATCH) -> list[BatchSpec]:
    """What each rank needs under a plan."""
    x, y = (samples, LENGTH), (samples,)
    halves = [Piece("x", x, ((0, 1, 2, r),)) for r in range(2)]
    parts: dict[str, list[dict[str, Piece]]] = {
        "one": [{"x": Piece("x", x, ()), "y": Piece("y", y, ())}],
        "dp": [{"x": halves[r], "y": Piece("y", y, ((0, 1, 2, r),))} for r in range(2)],
        "striped": [{"x": Piece("x", x, ((0, 2, 2, r),)), "y": Piece("y", y, ((0, 2, 2, r),))} for r in range(2)],
        "sequence": [{"x": Piece("x", x, ((0, 1, 2, r // 2), (1, 1, 2, r % 2)))} for r in range(4)],
        "pipeline": [{}, {"x": halves[0]}, {"x": halves[1]}, {"y": Piece("y", y, ())}],
    }
    return [BatchSpec.of(table(samples), pieces) for pieces in parts[plan]]


PLANS = ("one", "dp", "striped", "sequence", "pipeline")


def sample(key: int) -> tuple[torch.Tensor, int]:
    return torch.arange(LENGTH, dtype=torch.float32) + 100 * key, key


class Numbers(Dataset[Any]):
    """Samples that tell which they are; `read` notes those that were asked for."""

    def __init__(self, size: int = 30) -> None:
        self.size, self.read = size, list[int]()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: int) -> Any:
        self.read.append(key)
        return sample(key)


class Noisy(Numbers):
    """Samples with noise of all three generators."""

    def __getitem__(self, key: int) -> Any:
        x, y = super().__getitem__(key)
        return x + torch.rand(1) + 10 * random.random() + float(np.random.rand()), y


class Flow(IterableDataset[Any]):
    """The samples as a stream, of which each worker has its share."""

    def __init__(self, size: int = 30) -> None:
        self.size, self.begun, self.given = size, 0, 0

    def __iter__(self) -> Iterator[Any]:
        self.begun += 1
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        for key in range(first, self.size, step):
            self.given += 1
            yield sample(key)


class Stateful(Flow):
    """A stream that can go on where it was."""

    def __init__(self, size: int = 30) -> None:
        super().__init__(size)
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.size:
            self.at += 1
            self.given += 1
            yield sample(self.at - 1)
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]
