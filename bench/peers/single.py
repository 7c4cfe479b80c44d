"""One process, the untouched model: the losses that all others must reach."""

from typing import Any

from torch import Tensor, nn

from bench.peers.setup import Batch, Step, adamw, compiled, train


def build(model: nn.Module, rank: int, ranks: int) -> Step:
    optimizer = adamw(compiled(model).parameters())

    def step(batch: Batch) -> Tensor:
        loss = loss_of(model(**batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def loss_of(outputs: Any) -> Tensor:
    """The loss of a model that returns it, or it among others."""
    return outputs if isinstance(outputs, Tensor) else outputs.loss  # type: ignore[no-any-return]


if __name__ == "__main__":
    train(build)
