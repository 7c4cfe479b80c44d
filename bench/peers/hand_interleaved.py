"""A pipeline by hand with two stages on each of two ranks: interleaved 1F1B (Megatron-LM, arXiv 2104.04473)."""

from collections.abc import Iterator

from transformers import GPT2LMHeadModel

from bench.peers.hand_pipeline import MICRO_BATCHES, Kind, Task, pipeline
from bench.peers.setup import Step, train

CHUNKS = 2  # stages on a rank


def build(model: GPT2LMHeadModel, rank: int, ranks: int) -> Step:
    return pipeline(model, rank, ranks, ranks * CHUNKS, order(rank, ranks))


def order(rank: int, ranks: int) -> Iterator[Task]:
    """Micro-batches go through a rank's chunks in groups of as many as there are ranks. After the forwards that fill
    the pipeline, F and B in turn."""
    groups = [range(m, m + ranks) for m in range(0, MICRO_BATCHES, ranks)]
    forwards = [(chunk, m) for group in groups for chunk in range(CHUNKS) for m in group]
    backwards = [(chunk, m) for group in groups for chunk in reversed(range(CHUNKS)) for m in group]
    ahead = 2 * (ranks - 1 - rank) + (CHUNKS - 1) * ranks
    for number in range(len(forwards) + ahead):
        if number < len(forwards):
            chunk, m = forwards[number]
            yield Kind.FORWARD, chunk * ranks + rank, m
        if number >= ahead:
            chunk, m = backwards[number - ahead]
            yield Kind.BACKWARD, chunk * ranks + rank, m


if __name__ == "__main__":
    train(build)
