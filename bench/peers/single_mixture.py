"""One process, the untouched Mixtral: the losses that those who divide its experts must reach."""

from torch import Tensor
from transformers import MixtralForCausalLM

from bench.mixture import build_mixture
from bench.peers.setup import Batch, Step, adamw, train


def build(model: MixtralForCausalLM, rank: int, ranks: int) -> Step:
    optimizer = adamw(model.parameters())

    def step(batch: Batch) -> Tensor:
        loss: Tensor = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


if __name__ == "__main__":
    train(build, build_mixture)
