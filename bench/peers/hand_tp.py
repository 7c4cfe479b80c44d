"""Tensor parallel by hand, as Megatron-LM does it (arXiv 1909.08053): heads, ffn and vocabulary are split.

A region that is split begins with Megatron's f and ends with its g: one all_reduce each, in backward and in forward.
The embedding, which is also the head, is split by vocabulary; the cross entropy works on split logits. Weights outside
the regions are copies with equal gradients, and need no communication.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers import GPT2LMHeadModel

from bench.gpt import SIZE
from bench.peers.lean import Weights, attend, gelu, initial_weights, linear, norm
from bench.peers.setup import IGNORED, Batch, Step, adamw, shift, train


def build(model: GPT2LMHeadModel, rank: int, ranks: int) -> Step:
    weights = {name: shard(name, w, rank, ranks).requires_grad_() for name, w in initial_weights(model).items()}
    optimizer = adamw(weights.values())

    def step(batch: Batch) -> Tensor:
        logits = forward(batch["input_ids"], weights, rank, ranks)
        loss = SplitCrossEntropy.apply(logits, shift(batch["labels"]), rank * SIZE.vocab // ranks)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss / ranks  # every rank has all of it

    return step


def shard(name: str, weight: Tensor, rank: int, ranks: int) -> Tensor:
    """This rank's part of a weight; those of `c_attn` are three parts, of queries, keys and values."""
    if name == "wte.weight":
        part = weight.chunk(ranks)[rank]
    elif "c_attn" in name:
        part = weight.unflatten(-1, (3, ranks, -1))[..., rank, :].flatten(-2)
    elif "c_fc" in name:
        part = weight.chunk(ranks, -1)[rank]
    elif name.endswith("c_proj.weight"):
        part = weight.chunk(ranks)[rank]
    else:
        part = weight
    return part.clone()


def forward(ids: Tensor, w: Weights, rank: int, ranks: int) -> Tensor:
    """From token ids to this rank's part of the logits, `[batch · seq, vocab / ranks]`."""
    x = Leave.apply(embed(ids, w["wte.weight"], rank)) + w["wpe.weight"]
    for h in (f"h.{layer}." for layer in range(SIZE.layers)):
        qkv = linear(Enter.apply(norm(x, w, h + "ln_1")), w, h + "attn.c_attn")
        x = x + contract(attend(qkv, SIZE.heads // ranks), w, h + "attn.c_proj")
        wide = gelu(linear(Enter.apply(norm(x, w, h + "ln_2")), w, h + "mlp.c_fc"))
        x = x + contract(wide, w, h + "mlp.c_proj")
    return F.linear(Enter.apply(norm(x, w, "ln_f")).flatten(0, 1), w["wte.weight"])


def embed(ids: Tensor, table: Tensor, rank: int) -> Tensor:
    """The rows of this rank's part of the table, zeros for the tokens that are in another part."""
    local = ids - rank * len(table)
    elsewhere = (local < 0) | (local >= len(table))
    return F.embedding(local.masked_fill(elsewhere, 0), table).masked_fill(elsewhere.unsqueeze(-1), 0.0)


def contract(x: Tensor, w: Weights, name: str) -> Tensor:
    """A linear split along its input: partial sums, added up; then the bias, once."""
    partial = torch.mm(x.flatten(0, -2), w[name + ".weight"])
    return (Leave.apply(partial) + w[name + ".bias"]).unflatten(0, x.shape[:-1])


class Enter(torch.autograd.Function):
    """Megatron's f: identity forward, all_reduce backward. The gradient is a fresh product: it may change."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> Tensor:
        dist.all_reduce(gradient)
        return gradient


class Leave(torch.autograd.Function):
    """Megatron's g: all_reduce forward, in place, identity backward."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        dist.all_reduce(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient


class SplitCrossEntropy(torch.autograd.Function):
    """Mean cross entropy of logits that are split by vocabulary: only a maximum and two sums per token travel."""

    @staticmethod
    def forward(ctx, logits: Tensor, labels: Tensor, first: int) -> Tensor:
        local = labels - first
        is_here = (local >= 0) & (local < logits.shape[-1])
        row = local.masked_fill(~is_here, 0).unsqueeze(-1)
        counts = labels != IGNORED
        scale = counts / counts.sum()

        maximum = logits.amax(-1, keepdim=True)
        dist.all_reduce(maximum, dist.ReduceOp.MAX)
        shifted = logits - maximum
        target = shifted.gather(-1, row).squeeze(-1) * is_here
        exp = shifted.exp_()
        sums = torch.stack((exp.sum(-1), target))
        dist.all_reduce(sums)

        ctx.save_for_backward(exp, sums[0], row, is_here, scale)
        return ((sums[0].log() - sums[1]) * scale).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:
        exp, total, row, is_here, scale = ctx.saved_tensors
        scale = (scale * gradient).unsqueeze(-1)
        result = exp.mul_(scale / total.unsqueeze(-1))  # the softmax; nobody reads the exponentials again
        return result.scatter_add_(-1, row, -scale * is_here.unsqueeze(-1)), None, None


if __name__ == "__main__":
    train(build)
