"""An exponential average of the weights: of what each rank holds, so that it needs no communication."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ssdsl.runtime.train.engine import Engine


class Average:
    """The average of an engine's weights and buffers. It begins with those of now: a checkpoint does not keep it."""

    def __init__(self, engine: Engine, keep: float) -> None:
        self.engine, self.keep = engine, keep
        self.tensors = {name: held.detach().clone() for name, held in engine.tensors().items()}

    @torch.no_grad()
    def update(self) -> None:
        """After a step."""
        for name, held in self.engine.tensors().items():
            if held.is_floating_point():
                self.tensors[name].lerp_(held, 1 - self.keep)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the engine has the average: to evaluate it, or to save it in a folder of its own."""
        before = {name: held.clone() for name, held in self.engine.tensors().items()}
        self.engine.put(self.tensors)
        try:
            yield
        finally:
            self.engine.put(before)
