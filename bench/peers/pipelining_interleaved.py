"""A pipeline with two stages on each of two ranks by torch.distributed.pipelining's ScheduleInterleaved1F1B."""

from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
from transformers import GPT2LMHeadModel

from bench.peers.pipelining import MICRO_BATCHES, cross_entropy, pipeline
from bench.peers.setup import Step, train


def build(model: GPT2LMHeadModel, rank: int, ranks: int) -> Step:
    return pipeline(model, [rank, rank + ranks], 2 * ranks, schedule)


def schedule(stages: list[PipelineStage]) -> ScheduleInterleaved1F1B:
    return ScheduleInterleaved1F1B(stages, MICRO_BATCHES, loss_fn=cross_entropy)


if __name__ == "__main__":
    train(build)
