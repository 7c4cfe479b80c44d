"""A pipeline of two stages by hand: ZB-H1 (Qi et al. 2023, arXiv 2401.10241). A backward passes on the gradient of its
input as soon as it can; the gradients of weights fill what would be the bubble."""

from collections.abc import Iterator

from transformers import GPT2LMHeadModel

from bench.peers.hand_pipeline import MICRO_BATCHES, Kind, Task, pipeline
from bench.peers.setup import Step, train


def build(model: GPT2LMHeadModel, rank: int, ranks: int) -> Step:
    return pipeline(model, rank, ranks, stages=2, order=order(rank))


def order(rank: int) -> Iterator[Task]:
    """F, B and W in turn; the first stage is a forward ahead, and the last a W behind."""
    ahead, late = 1 - rank, rank
    for m in range(MICRO_BATCHES + 1):
        if m < MICRO_BATCHES:
            yield Kind.FORWARD, rank, m
        if 0 <= m - ahead < MICRO_BATCHES:
            yield Kind.BACKWARD, rank, m - ahead
        if m >= ahead + late:
            yield Kind.WEIGHTS, rank, m - ahead - late


if __name__ == "__main__":
    train(build)
