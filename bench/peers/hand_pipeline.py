"""What the hand-written pipelines share: a rank carries out the tasks of its stages in an order, and all messages are
asynchronous and tagged.

Stage s is on rank s % ranks. Receives are posted before the step begins, so a message finds its buffer whenever it
comes. The tied embedding lives on both ranks, and its two gradients are added.
"""

from collections.abc import Iterable
from enum import StrEnum

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers import GPT2LMHeadModel

from bench.gpt import SIZE
from bench.peers.lean import Stage, build_stage, multiply
from bench.peers.setup import Batch, Step, adamw, shift

MICRO_BATCHES = 4


class Kind(StrEnum):
    """A forward, a backward, and the gradients of weights that a backward has put off."""

    FORWARD = "F"
    BACKWARD = "B"
    WEIGHTS = "W"


Task = tuple[Kind, int, int]  # with its stage and micro-batch
Message = tuple[Tensor, dist.Work]
PutOff = list[tuple[Tensor | None, Tensor, Tensor, Tensor]]  # bias, input, weight, gradient of the product


def pipeline(model: GPT2LMHeadModel, rank: int, ranks: int, stages: int, order: Iterable[Task]) -> Step:
    """The step of a rank. Backwards put off the gradients of products' weights if the order has tasks for them."""
    assert ranks == 2, "both ranks have the embedding"
    tasks, put_off = list(order), PutOff()
    later = any(kind is Kind.WEIGHTS for kind, _, _ in tasks)

    def multiply_later(bias: Tensor | None, x: Tensor, weight: Tensor) -> Tensor:
        return Product.apply(bias, x, weight, put_off)

    each = SIZE.layers // stages
    mine = {
        s: build_stage(model, s * each, (s + 1) * each - 1, multiply_later if later else multiply)
        for s in range(rank, stages, ranks)
    }
    weights = {name: w for stage in mine.values() for name, w in stage.weights.items()}
    optimizer = adamw(weights.values())

    def step(batch: Batch) -> Tensor:
        loss = run(mine, stages, ranks, tasks, batch, put_off)
        dist.all_reduce(weights["wte.weight"].grad)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def run(mine: dict[int, Stage], stages: int, ranks: int, tasks: list[Task], batch: Batch, put_off: PutOff) -> Tensor:
    """Carry out the tasks; this rank's share of the loss."""
    ids, labels = (batch[name].chunk(MICRO_BATCHES) for name in ("input_ids", "labels"))
    parts = [(s, m) for s in mine for m in range(MICRO_BATCHES)]
    inputs = {(s, m): receive((s - 1) % ranks, 2 * (s * MICRO_BATCHES + m)) for s, m in parts if s > 0}
    gradients = {(s, m): receive((s + 1) % ranks, 2 * (s * MICRO_BATCHES + m) + 1) for s, m in parts if s < stages - 1}
    tensors: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # input and output of forwards
    weights: dict[tuple[int, int], PutOff] = {}
    losses, sends = [torch.zeros(())], []

    for kind, s, m in tasks:
        if kind is Kind.FORWARD:
            x = ids[m] if s == 0 else arrived(inputs.pop((s, m))).requires_grad_()
            y = mine[s](x)
            if s < stages - 1:
                sends.append(dist.isend(y.detach(), (s + 1) % ranks, tag=2 * ((s + 1) * MICRO_BATCHES + m)))
            else:
                y = mine[s].loss(y, shift(labels[m])) / MICRO_BATCHES
                losses.append(y.detach())
            tensors[s, m] = x, y
        elif kind is Kind.BACKWARD:
            x, y = tensors.pop((s, m))
            y.backward(arrived(gradients.pop((s, m))) if s < stages - 1 else None)
            if s > 0:
                sends.append(dist.isend(x.grad, (s - 1) % ranks, tag=2 * ((s - 1) * MICRO_BATCHES + m) + 1))
            weights[s, m] = [*put_off]
            put_off.clear()
        else:
            finish(weights.pop((s, m)))
    for send in sends:
        send.wait()
    return torch.stack(losses).sum()


def receive(source: int, tag: int) -> Message:
    buffer = torch.empty(SIZE.batch // MICRO_BATCHES, SIZE.seq, SIZE.hidden)
    return buffer, dist.irecv(buffer, source, tag=tag)


def arrived(message: Message) -> Tensor:
    buffer, work = message
    work.wait()
    return buffer


class Product(torch.autograd.Function):
    """A product whose backward computes the gradient of its input alone, and puts off those of weight and bias."""

    @staticmethod
    def forward(ctx, bias: Tensor | None, x: Tensor, weight: Tensor, put_off: PutOff) -> Tensor:
        ctx.save_for_backward(bias, x, weight)
        ctx.put_off = put_off
        return multiply(bias, x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[None, Tensor, None, None]:
        bias, x, weight = ctx.saved_tensors
        ctx.put_off.append((bias, x, weight, gradient))
        return None, gradient @ weight.T, None, None


def finish(put_off: PutOff) -> None:
    """Add the gradients of weights and biases that a backward has put off."""
    for bias, x, weight, gradient in put_off:
        weight.backward(x.T @ gradient)
        if bias is not None:
            bias.backward(gradient.sum(0))
