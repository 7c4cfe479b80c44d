"""A pipeline of two stages by hand: 1F1B (PipeDream-Flush, arXiv 2006.09503) over four micro-batches."""

from collections.abc import Iterator

from transformers import GPT2LMHeadModel

from bench.peers.hand_pipeline import MICRO_BATCHES, Kind, Task, pipeline
from bench.peers.setup import Step, train


def build(model: GPT2LMHeadModel, rank: int, ranks: int) -> Step:
    return pipeline(model, rank, ranks, stages=2, order=order(rank))


def order(rank: int) -> Iterator[Task]:
    """F and B in turn; the first stage is a forward ahead."""
    ahead = 1 - rank
    for m in range(MICRO_BATCHES + ahead):
        if m < MICRO_BATCHES:
            yield Kind.FORWARD, rank, m
        if m >= ahead:
            yield Kind.BACKWARD, rank, m - ahead


if __name__ == "__main__":
    train(build)
