"""A pipeline of two stages by torch.distributed.pipelining's Schedule1F1B, with four micro-batches."""

from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from transformers import GPT2LMHeadModel

from bench.peers.pipelining import MICRO_BATCHES, cross_entropy, pipeline
from bench.peers.setup import Step, train


def build(model: GPT2LMHeadModel, rank: int, ranks: int) -> Step:
    return pipeline(model, [rank], ranks, schedule)


def schedule(stages: list[PipelineStage]) -> Schedule1F1B:
    return Schedule1F1B(*stages, MICRO_BATCHES, loss_fn=cross_entropy)


if __name__ == "__main__":
    train(build)
