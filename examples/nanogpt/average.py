"""An exponential average of the weights: of what each rank holds, so that it needs no communication."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ssdsl.runtime.train.engine import Engine


class Average:
    """The average of an engine's weights and buffers, which begins with those of now."""

    def __init__(self, engine: Engine, keep: float) -> None:
        self.engine, self.keep = engine, keep
        self.tensors = self._now()

    def _now(self) -> dict[str, torch.Tensor]:
        return {name: held.detach().clone() for name, held in self.engine.tensors().items()}

    @torch.no_grad()
    def update(self) -> None:
        """After a step."""
        for name, held in self.engine.tensors().items():
            if held.is_floating_point():
                self.tensors[name].lerp_(held, 1 - self.keep)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the engine has the average: to evaluate it, or to save it in a folder of its own."""
        before = self._now()
        self.engine.put(self.tensors)
        try:
            yield
        finally:
            self.engine.put(before)

    def save(self, folder: Path) -> None:
        """As a checkpoint of its own; before that of the training, so that it is there when that is."""
        with self.in_place():
            self.engine.save(folder)

    def resume(self, folder: Path) -> None:
        """The average of the step that the engine has resumed, if it was saved."""
        checkpoint = folder / f"step-{self.engine.steps:08}"
        if checkpoint.exists():
            before = self._now()
            self.engine.load(checkpoint)
            self.tensors = self._now()
            self.engine.put(before)
