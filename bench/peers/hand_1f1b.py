"""A pipeline of two stages by hand: 1F1B over four micro-batches, all messages asynchronous and tagged.

Receives are posted before the step begins, so a message finds its buffer whenever it comes. The tied embedding lives in
both stages, and its two gradients are added.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import GPT2LMHeadModel

from bench.gpt import SIZE
from bench.peers.lean import LAST, Stage, build_stage
from bench.peers.setup import Batch, Step, adamw, shift, train

MICRO_BATCHES = 4


def build(model: GPT2LMHeadModel, rank: int, ranks: int) -> Step:
    assert ranks == 2, "this program has two stages"
    half = SIZE.layers // 2
    stage = build_stage(model, 0, half - 1) if rank == 0 else build_stage(model, half, LAST)
    optimizer = adamw(stage.parameters())
    run = first_stage if rank == 0 else last_stage

    def step(batch: Batch) -> Tensor:
        loss = run(stage, batch)
        dist.all_reduce(stage.weights["wte.weight"].grad)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def first_stage(stage: Stage, batch: Batch) -> Tensor:
    """F0, then F and B in turn, then the last B."""
    ids = batch["input_ids"].chunk(MICRO_BATCHES)
    gradients = [receive(1, m) for m in range(MICRO_BATCHES)]
    outputs, sends = [], []

    def backward(m: int) -> None:
        gradient, message = gradients[m]
        message.wait()
        outputs[m].backward(gradient)

    for m in range(MICRO_BATCHES):
        outputs.append(stage(ids[m]))
        sends.append(dist.isend(outputs[m].detach(), 1, tag=m))
        if m > 0:
            backward(m - 1)
    backward(MICRO_BATCHES - 1)
    for send in sends:
        send.wait()
    return torch.zeros(())


def last_stage(stage: Stage, batch: Batch) -> Tensor:
    """F and B in turn."""
    labels = batch["labels"].chunk(MICRO_BATCHES)
    inputs = [receive(0, m) for m in range(MICRO_BATCHES)]
    losses, sends = [], []
    for m, (x, message) in enumerate(inputs):
        message.wait()
        x.requires_grad_()
        loss = stage.loss(stage(x), shift(labels[m])) / MICRO_BATCHES
        loss.backward()
        sends.append(dist.isend(x.grad, 0, tag=m))
        losses.append(loss.detach())
    for send in sends:
        send.wait()
    return torch.stack(losses).sum()


def receive(source: int, tag: int) -> tuple[Tensor, dist.Work]:
    buffer = torch.empty(SIZE.batch // MICRO_BATCHES, SIZE.seq, SIZE.hidden)
    return buffer, dist.irecv(buffer, source, tag=tag)


if __name__ == "__main__":
    train(build)
