"""Data parallel by hand: all gradients lie in one flat tensor, which travels in one all_reduce."""

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import GPT2LMHeadModel

from bench.peers.lean import LAST, build_stage
from bench.peers.setup import Batch, Step, adamw, part_of, shift, train


def build(model: GPT2LMHeadModel, rank: int, ranks: int) -> Step:
    whole = build_stage(model, 0, LAST)
    parameters = whole.parameters()
    flat = flatten_gradients(parameters)
    optimizer = adamw(parameters)

    def step(batch: Batch) -> Tensor:
        part = part_of(batch, rank, ranks)
        flat.zero_()
        loss = whole.loss(whole(part["input_ids"]), shift(part["labels"])) / ranks
        loss.backward()
        dist.all_reduce(flat)
        optimizer.step()
        return loss

    return step


def flatten_gradients(parameters: list[Tensor]) -> Tensor:
    """One tensor for all gradients, of which each parameter's is a view that backward adds to."""
    flat = torch.zeros(sum(p.numel() for p in parameters))
    for parameter, gradient in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = gradient.view_as(parameter)
    return flat


if __name__ == "__main__":
    train(build)
