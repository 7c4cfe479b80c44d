"""One process, the untouched model, with Muon for the matrices of layers and AdamW for the rest: the losses that both
others must reach."""

from typing import Any

import torch
from torch import Tensor, nn

from bench.peers.setup import Batch, Step, adamw, train
from bench.peers.single import loss_of

MUON: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.0}


def is_matrix(name: str, weight: Tensor) -> bool:
    """Whether Muon steps on a weight: a matrix of a layer, and no embedding."""
    return "h." in name and weight.dim() == 2


def build(model: nn.Module, rank: int, ranks: int) -> Step:
    named = [*model.named_parameters()]
    optimizers = (
        torch.optim.Muon([w for n, w in named if is_matrix(n, w)], **MUON),
        adamw([w for n, w in named if not is_matrix(n, w)]),
    )

    def step(batch: Batch) -> Tensor:
        loss = loss_of(model(**batch))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return step


if __name__ == "__main__":
    train(build)
