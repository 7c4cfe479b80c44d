"""A checkpoint keeps which batches were trained on, not which were loaded: of all loaders that training takes from."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from ssdsl.runtime.train.engine import Engine
from tests.train.conftest import batches, on_ranks

PLANS = ("data", "stages")


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The samples of some batches."""

    def __init__(self, first: int, count: int) -> None:
        self.batches, self.first, self.count = batches(8), first, count

    def __len__(self) -> int:
        return 12 * self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        batch = self.batches[self.first + index // 12]
        return {name: tensor[index % 12] for name, tensor in batch.items()}


def resumed(engine: Engine, folder: Path, losses: Any) -> tuple[list[float], list[float]]:
    """The losses behind the second step, and those of a run that is resumed there. `losses` steps and saves."""
    engine.optimizer(torch.optim.SGD, lr=0.1)
    loaders = [engine.loader(Rows(0, 4), 12, shuffle=True), engine.loader(Rows(4, 4), 12)]
    whole = losses(engine, loaders, folder)
    engine.resume(folder)
    assert engine.steps == 2
    return whole[2:], losses(engine, loaders, None)[: len(whole) - 2]


def ahead(engine: Engine, loaders: Any, folder: Path | None) -> list[float]:
    """One batch is loaded before the last one is trained on."""
    found = []
    for batch, _ in pairwise(loaders[0]):
        found.append(engine.step(batch))
        if folder is not None and engine.steps == 2:
            engine.save(folder, wait=True)
    return found


def in_turn(engine: Engine, loaders: Any, folder: Path | None) -> list[float]:
    """Batches of two loaders in turn."""
    found = []
    for pair in zip(*loaders, strict=True):
        found += [engine.step(batch) for batch in pair]
        if folder is not None and engine.steps == 2:
            engine.save(folder, wait=True)
    return found


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("losses", [ahead, in_turn])
def test_resumed_behind_the_last_step(plan: str, losses: Any, tmp_path: Path) -> None:
    for whole, rest in on_ranks(plan, lambda engine: resumed(engine, tmp_path, losses)):
        assert len(whole) >= 1 and rest == whole
