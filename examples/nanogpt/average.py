"""An exponential average of the weights: of what each rank holds, so that it needs no communication."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ssdsl.runtime.train.engine import Engine


class Average:
    """The average of an engine's weights and buffers. It begins with those of now: a checkpoint does not keep it."""

    def __init__(self, engine: Engine, keep: float) -> None:
        self.engine, self.keep = engine, keep
        self.tensors = {held.name: held.tensor.float().clone() for held in engine.held()}

    @torch.no_grad()
    def update(self) -> None:
        """After a step."""
        for held in self.engine.held():
            self.tensors[held.name].lerp_(held.tensor.float(), 1 - self.keep)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the engine evaluates with the average."""
        before = {held.name: held.tensor.clone() for held in self.engine.held()}
        self._set(self.tensors)
        yield
        self._set(before)

    @torch.no_grad()
    def _set(self, tensors: dict[str, torch.Tensor]) -> None:
        for held in self.engine.held():
            held.tensor.copy_(tensors[held.name])
