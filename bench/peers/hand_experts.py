"""A mixture of experts by hand (GShard, 2020): each rank has a part of the batch and a part of the experts.

A rank sorts its rows by expert and sends each rank those of its experts: first how many for each expert, then the rows,
with two all_to_alls. What the experts make of them comes back the same way, and so do the gradients. The weights that
all ranks have lie in one flat gradient, which travels in one all_reduce.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers import MixtralConfig, MixtralForCausalLM

from bench.peers.hand_dp import flatten_gradients
from bench.peers.setup import IGNORED, Batch, Step, adamw, part_of, shift, train

Weights = dict[str, Tensor]
Experts = list[list[tuple[Tensor, Tensor]]]  # of each layer, of each expert: gate and up in one, down


def build(model: MixtralForCausalLM, rank: int, ranks: int) -> Step:
    config = model.config
    named = {n.removeprefix("model."): w.detach().clone() for n, w in model.named_parameters()}
    weights = {n: w.requires_grad_() for n, w in named.items() if ".experts." not in n}
    experts = [own_experts(named, f"layers.{k}.mlp.experts.", rank, ranks) for k in range(config.num_hidden_layers)]
    flat = flatten_gradients(list(weights.values()))
    apart = [w for layer in experts for both in layer for w in both]
    optimizer = adamw([*weights.values(), *apart])
    turned = angles(config, model.model.rotary_emb.inv_freq)

    def step(batch: Batch) -> Tensor:
        part = part_of(batch, rank, ranks)
        flat.zero_()
        for weight in apart:
            weight.grad = None
        scores = forward(part["input_ids"], weights, experts, config, turned)
        loss = F.cross_entropy(scores.flatten(0, 1), shift(part["labels"]), ignore_index=IGNORED) / ranks
        loss.backward()
        dist.all_reduce(flat)
        optimizer.step()
        return loss

    return step


def own_experts(named: Weights, layer: str, rank: int, ranks: int) -> list[tuple[Tensor, Tensor]]:
    """The weights of this rank's experts of a layer, a tensor for each matrix."""
    both = (named[layer + name].chunk(ranks)[rank].unbind() for name in ("gate_up_proj", "down_proj"))
    return [(up.clone().requires_grad_(), down.clone().requires_grad_()) for up, down in zip(*both, strict=True)]


def angles(config: MixtralConfig, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """The cosine and sine of each position's angles."""
    turns = torch.outer(torch.arange(config.max_position_embeddings), frequencies).repeat(1, 2)
    return turns.cos(), turns.sin()


def forward(
    tokens: Tensor, w: Weights, experts: Experts, config: MixtralConfig, turned: tuple[Tensor, Tensor]
) -> Tensor:
    """From tokens to the scores of the next ones."""
    x = F.embedding(tokens, w["embed_tokens.weight"])
    for number, own in enumerate(experts):
        layer = f"layers.{number}."
        x = x + attention(norm(x, w[layer + "input_layernorm.weight"], config), w, layer + "self_attn.", config, turned)
        y = norm(x, w[layer + "post_attention_layernorm.weight"], config)
        x = x + mixture(y.flatten(0, 1), w[layer + "mlp.gate.weight"], own, config).view_as(x)
    return F.linear(norm(x, w["norm.weight"], config), w["lm_head.weight"])


def norm(x: Tensor, weight: Tensor, config: MixtralConfig) -> Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps))


def attention(x: Tensor, w: Weights, name: str, config: MixtralConfig, turned: tuple[Tensor, Tensor]) -> Tensor:
    """Causal attention with fewer heads of keys and values than of queries."""
    width = config.hidden_size // config.num_attention_heads
    q, k, v = (F.linear(x, w[f"{name}{p}_proj.weight"]).unflatten(-1, (-1, width)).transpose(1, 2) for p in "qkv")
    cos, sin = (t[: x.shape[1]] for t in turned)
    q, k = (t * cos + torch.cat([-t[..., width // 2 :], t[..., : width // 2]], -1) * sin for t in (q, k))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return F.linear(y.transpose(1, 2).flatten(2), w[f"{name}o_proj.weight"])


def mixture(x: Tensor, router: Tensor, own: list[tuple[Tensor, Tensor]], config: MixtralConfig) -> Tensor:
    """Each token goes to some experts, on whatever rank, and gets the weighted sum of what they make of it."""
    top, ranks = config.num_experts_per_tok, dist.get_world_size()
    shares, chosen = F.linear(x, router).softmax(-1).topk(top)
    shares = shares / shares.sum(-1, keepdim=True)
    order = chosen.flatten().argsort(stable=True)
    sent = torch.bincount(chosen.flatten(), minlength=ranks * len(own))
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent)
    splits = (got.view(ranks, -1).sum(1).tolist(), sent.view(ranks, -1).sum(1).tolist())
    rows = Travel.apply(x[order // top], *splits)
    by_expert = torch.arange(len(own)).repeat(ranks).repeat_interleave(got).argsort(stable=True)
    runs = rows[by_expert].split(got.view(ranks, -1).sum(0).tolist())
    made = torch.cat([feed_forward(run, *weights) for run, weights in zip(runs, own, strict=True)])
    back = Travel.apply(made[by_expert.argsort()], splits[1], splits[0])[order.argsort()]
    return (back.view(-1, top, x.shape[1]) * shares.unsqueeze(-1)).sum(1)


def feed_forward(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    gate, wide = F.linear(x, up).chunk(2, -1)
    return F.linear(F.silu(gate) * wide, down)


class Travel(torch.autograd.Function):
    """So many rows from each rank, for so many to each; gradients go back."""

    @staticmethod
    def forward(ctx, x: Tensor, got: list[int], sent: list[int]) -> Tensor:
        ctx.splits = got, sent
        received = x.new_empty(sum(got), x.shape[1])
        dist.all_to_all_single(received, x, got, sent)
        return received

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:
        got, sent = ctx.splits
        back = gradient.new_empty(sum(sent), gradient.shape[1])
        dist.all_to_all_single(back, gradient.contiguous(), sent, got)
        return back, None, None


if __name__ == "__main__":
    train(build)
