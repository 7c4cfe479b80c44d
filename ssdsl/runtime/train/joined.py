"""Optimizers of several classes that step as one: Muon on matrices, AdamW on the rest."""

from collections.abc import Callable, Sequence
from typing import Any

import torch


class JoinedOptimizers(torch.optim.Optimizer):
    """Steps with several optimizers, one after another. Its groups are theirs, in the order that is given, and its
    state is theirs, so that schedulers and checkpoints see one optimizer."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], groups: Sequence[dict[str, Any]]) -> None:
        super().__init__([*groups], {})
        self.joined = [*optimizers]
        for optimizer in optimizers:
            optimizer.state = self.state

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One step of each; an engine gives no closure."""
        for optimizer in self.joined:
            optimizer.step()
