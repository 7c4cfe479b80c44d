"""A pipeline in a V, with two stages on each of two ranks, by torch.distributed.pipelining's ScheduleZBVZeroBubble."""

from torch.distributed.pipelining import PipelineStage, ScheduleZBVZeroBubble
from transformers import GPT2LMHeadModel

from bench.peers.pipelining import MICRO_BATCHES, cross_entropy, pipeline
from bench.peers.setup import Step, train


def build(model: GPT2LMHeadModel, rank: int, ranks: int) -> Step:
    return pipeline(model, [rank, 2 * ranks - 1 - rank], 2 * ranks, schedule)


def schedule(stages: list[PipelineStage]) -> ScheduleZBVZeroBubble:
    return ScheduleZBVZeroBubble(stages, MICRO_BATCHES, loss_fn=cross_entropy)


if __name__ == "__main__":
    train(build)
