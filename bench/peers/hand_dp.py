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


def flatten_gradients(parameters: list[Tensor], elements: int | None = None) -> Tensor:
    """One tensor for all gradients, of which each parameter's is a view that backward adds to. It has as many elements
    as the parameters, or `elements`, which are more."""
    sizes = [p.numel() for p in parameters]
    flat = torch.zeros(elements or sum(sizes))
    for parameter, gradient in zip(parameters, flat[: sum(sizes)].split(sizes), strict=True):
        parameter.grad = gradient.view_as(parameter)
    return flat


if __name__ == "__main__":
    train(build)
