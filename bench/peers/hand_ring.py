"""Context parallel by hand: causal ring attention (Liu, Zaharia and Abbeel 2023, arXiv 2310.01889) over runs of tokens.

A rank has a run of the sequence and copies of all weights. Keys and values go from each rank to the next while it
computes with those that it has; the last rank passes on none, for nobody in front of it sees them. PyTorch's fused
kernel gives an output with the logarithm of its sum of exponentials, by which the outputs of two runs merge. In
backward the keys come again, and their gradients go straight to the rank that owns them. Gradients of weights are one
flat all_reduce.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers import GPT2LMHeadModel

from bench.gpt import SIZE
from bench.peers.hand_dp import flatten_gradients
from bench.peers.lean import Weights, feed_forward, initial_weights, linear, norm
from bench.peers.setup import IGNORED, Batch, Step, adamw, shift, train

aten = torch.ops.aten


def build(model: GPT2LMHeadModel, rank: int, ranks: int) -> Step:
    weights = {name: w.requires_grad_() for name, w in initial_weights(model).items()}
    flat = flatten_gradients(list(weights.values()))
    optimizer = adamw(weights.values())

    def step(batch: Batch) -> Tensor:
        flat.zero_()
        labels = shift(batch["labels"])
        mine = labels.view_as(batch["labels"]).chunk(ranks, 1)[rank].flatten()
        logits = forward(batch["input_ids"].chunk(ranks, 1)[rank], weights, rank, ranks)
        loss = F.cross_entropy(logits, mine, ignore_index=IGNORED, reduction="sum") / (labels != IGNORED).sum()
        loss.backward()
        dist.all_reduce(flat)
        optimizer.step()
        return loss

    return step


def forward(ids: Tensor, w: Weights, rank: int, ranks: int) -> Tensor:
    """From this rank's run of token ids to its logits, `[batch · run, vocab]`."""
    x = F.embedding(ids, w["wte.weight"]) + w["wpe.weight"].chunk(ranks)[rank]
    for h in (f"h.{layer}." for layer in range(SIZE.layers)):
        qkv = linear(norm(x, w, h + "ln_1"), w, h + "attn.c_attn")
        q, k, v = qkv.unflatten(-1, (3, SIZE.heads, -1)).permute(2, 0, 3, 1, 4)
        y = RingAttention.apply(q, k, v, rank, ranks).transpose(1, 2).flatten(2)
        x = feed_forward(x + linear(y, w, h + "attn.c_proj"), w, h)
    return F.linear(norm(x, w, "ln_f").flatten(0, 1), w["wte.weight"])


class RingAttention(torch.autograd.Function):
    """Causal attention of a run of queries; q, k, v: [batch, heads, run, head_dim]."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, rank: int, ranks: int) -> Tensor:
        own = held = torch.stack((k, v))
        out, log = torch.empty(0), torch.empty(0)
        for step in range(rank + 1):
            arriving, works = pass_on(held, step, rank, ranks)
            part, part_log = aten._scaled_dot_product_flash_attention_for_cpu(q, *held, 0.0, step == 0)
            out, log = (part, part_log) if step == 0 else merge(out, log, part, part_log)
            for work in works:
                work.wait()
            held = arriving
        ctx.save_for_backward(q, own, out, log)
        ctx.rank, ctx.ranks = rank, ranks
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        (q, held, out, log), rank, ranks = ctx.saved_tensors, ctx.rank, ctx.ranks
        d_query, d_own, sending = torch.empty(0), torch.empty(0), []
        for step in range(max(rank + 1, ranks - rank)):
            is_seen = step <= rank
            if is_seen:
                arriving, works = pass_on(held, step, rank, ranks)
                d_part, *d_keys = aten._scaled_dot_product_flash_attention_for_cpu_backward(
                    gradient, q, *held, out, log, 0.0, step == 0
                )
                d_query = d_part if step == 0 else d_query.add_(d_part)
                for work in works:
                    work.wait()
                held = arriving
                if step == 0:
                    d_own = torch.stack(d_keys)
                else:
                    sending.append((d_sent := torch.stack(d_keys), dist.isend(d_sent, rank - step)))
            if 0 < step < ranks - rank:
                other = torch.empty_like(d_own)
                dist.recv(other, rank + step)
                d_own += other
        for _, work in sending:
            work.wait()
        return d_query, *d_own, None, None


def pass_on(held: Tensor, step: int, rank: int, ranks: int) -> tuple[Tensor, list[dist.Work]]:
    """Starts to send the keys and values that are here to the next rank, and to receive those of the one before."""
    works = [dist.isend(held, rank + 1)] if rank + 1 < ranks else []
    arriving = torch.empty_like(held)
    if step < rank:
        works.append(dist.irecv(arriving, rank - 1))
    return arriving, works


def merge(out: Tensor, log: Tensor, part: Tensor, part_log: Tensor) -> tuple[Tensor, Tensor]:
    """The attention to the keys of both, with the logarithm of both sums, [batch, heads, run]."""
    share = torch.sigmoid(part_log - log).unsqueeze(-1).to(out.dtype)
    return torch.lerp(out, part, share), torch.logaddexp(log, part_log)


if __name__ == "__main__":
    train(build)
