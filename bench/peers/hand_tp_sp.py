"""Tensor and sequence parallel by hand, as Megatron-LM does it (arXiv 2205.05198): norms and residuals, which tensor
parallelism leaves whole, are split along the sequence.

A region that is split by heads, ffn or vocabulary begins with an all_gather along the sequence and ends with a
reduce_scatter; backward has the two the other way round. The sequence is the first axis, so both move whole rows. Each
rank has the gradients of norms and of biases behind a region from its own positions: one all_reduce of a flat tensor
adds them. Each has the rows of its own positions of the positions' table.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers import GPT2LMHeadModel

from bench.gpt import SIZE
from bench.peers.hand_dp import flatten_gradients
from bench.peers.hand_tp import SplitCrossEntropy, embed, shard
from bench.peers.lean import Weights, gelu, initial_weights, linear, norm
from bench.peers.setup import Batch, Step, adamw, shift, train


def build(model: GPT2LMHeadModel, rank: int, ranks: int) -> Step:
    initial = initial_weights(model)
    initial["wpe.weight"] = initial["wpe.weight"].chunk(ranks)[rank]
    weights = {name: shard(name, w, rank, ranks).requires_grad_() for name, w in initial.items()}
    summed = [w for name, w in weights.items() if "ln_" in name or name.endswith("c_proj.bias")]
    others = [w for w in weights.values() if all(w is not s for s in summed)]
    flat = flatten_gradients(summed)
    optimizer = adamw([*summed, *others])

    def step(batch: Batch) -> Tensor:
        flat.zero_()
        for weight in others:
            weight.grad = None
        logits = forward(batch["input_ids"].T, weights, rank, ranks)
        labels = shift(batch["labels"]).view_as(batch["labels"]).T.flatten()
        loss = SplitCrossEntropy.apply(logits, labels, rank * SIZE.vocab // ranks)
        loss.backward()
        dist.all_reduce(flat)
        optimizer.step()
        return loss / ranks  # every rank has all of it

    return step


def forward(ids: Tensor, w: Weights, rank: int, ranks: int) -> Tensor:
    """From token ids, [seq, batch], to this rank's part of the logits, [seq · batch, vocab / ranks]."""
    x = Scatter.apply(embed(ids, w["wte.weight"], rank), ranks) + w["wpe.weight"].unsqueeze(1)
    for h in (f"h.{layer}." for layer in range(SIZE.layers)):
        qkv = linear(Gather.apply(norm(x, w, h + "ln_1"), ranks), w, h + "attn.c_attn")
        x = x + contract(attend(qkv, SIZE.heads // ranks), w, h + "attn.c_proj", ranks)
        wide = gelu(linear(Gather.apply(norm(x, w, h + "ln_2"), ranks), w, h + "mlp.c_fc"))
        x = x + contract(wide, w, h + "mlp.c_proj", ranks)
    return F.linear(Gather.apply(norm(x, w, "ln_f"), ranks).flatten(0, 1), w["wte.weight"])


def attend(qkv: Tensor, heads: int) -> Tensor:
    """Causal attention over the fused projection, `[seq, batch, qkv · heads · head_dim]`."""
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 1, 3, 0, 4)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).permute(2, 0, 1, 3).flatten(2)


def contract(x: Tensor, w: Weights, name: str, ranks: int) -> Tensor:
    """A linear split along its input: partial sums, which are added up for this rank's positions; then the bias."""
    return Scatter.apply(x @ w[name + ".weight"], ranks) + w[name + ".bias"]


def all_gather(x: Tensor, ranks: int) -> Tensor:
    whole = x.new_empty(len(x) * ranks, *x.shape[1:])
    dist.all_gather_into_tensor(whole, x.contiguous())
    return whole


def reduce_scatter(x: Tensor, ranks: int) -> Tensor:
    mine = x.new_empty(len(x) // ranks, *x.shape[1:])
    dist.reduce_scatter_tensor(mine, x.contiguous())
    return mine


class Gather(torch.autograd.Function):
    """From this rank's positions to all of them."""

    @staticmethod
    def forward(ctx, x: Tensor, ranks: int) -> Tensor:
        ctx.ranks = ranks
        return all_gather(x, ranks)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return reduce_scatter(gradient, ctx.ranks), None


class Scatter(torch.autograd.Function):
    """From partial sums of all positions to the sums of this rank's."""

    @staticmethod
    def forward(ctx, x: Tensor, ranks: int) -> Tensor:
        ctx.ranks = ranks
        return reduce_scatter(x, ranks)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return all_gather(gradient, ctx.ranks), None


if __name__ == "__main__":
    train(build)
