"""One process, the untouched model: the losses that all others must reach."""

from torch import Tensor
from transformers import GPT2LMHeadModel

from bench.gpt import Batch
from bench.peers.setup import Step, adamw, compiled, train


def build(model: GPT2LMHeadModel, rank: int, ranks: int) -> Step:
    optimizer = adamw(compiled(model).parameters())

    def step(batch: Batch) -> Tensor:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


if __name__ == "__main__":
    train(build)
