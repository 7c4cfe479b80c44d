"""GPT-2 written down as plain functions of plain tensors: what the hand-written peers are made of.

The operators are those of the untouched model (the same attention, the same unfused GELU), so that a ratio to a
hand-written program measures how the program is parallel, and not another choice of kernels.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GPT2LMHeadModel
from transformers.activations import NewGELUActivation

from bench.gpt import SIZE
from bench.peers.setup import IGNORED

LAST = getattr(SIZE, "layers", 0) - 1  # another model has no layers, and no use for this
Weights = dict[str, Tensor]
Multiply = Callable[[Tensor | None, Tensor, Tensor], Tensor]
gelu = NewGELUActivation()


def initial_weights(model: GPT2LMHeadModel) -> Weights:
    """Copies of the model's weights, without the `transformer.` before their names and the head's second name."""
    state = model.state_dict()
    return {name.removeprefix("transformer."): w.clone() for name, w in state.items() if name != "lm_head.weight"}


def multiply(bias: Tensor | None, x: Tensor, weight: Tensor) -> Tensor:
    """The product of `x`, [rows, in], and a weight, [in, out]."""
    return torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)


@dataclass(frozen=True)
class Stage:
    """The layers `first` to `last`, with the embedding before layer 0 and the head after the last one. `multiply` makes
    the products with weights."""

    first: int
    last: int
    weights: Weights
    multiply: Multiply = multiply

    def __call__(self, x: Tensor) -> Tensor:
        """From token ids or the output of the stage before to its own, or logits, [batch · seq, vocab]."""
        if self.first == 0:
            x = F.embedding(x, self.weights["wte.weight"]) + self.weights["wpe.weight"]
        for layer in range(self.first, self.last + 1):
            x = attention(x, self.weights, f"h.{layer}.", SIZE.heads, self.multiply)
            x = feed_forward(x, self.weights, f"h.{layer}.", self.multiply)
        if self.last == LAST:
            x = self.multiply(None, norm(x, self.weights, "ln_f").flatten(0, 1), self.weights["wte.weight"].T)
        return x

    def loss(self, logits: Tensor, shifted_labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, shifted_labels, ignore_index=IGNORED)

    def parameters(self) -> list[Tensor]:
        return list(self.weights.values())


def build_stage(model: GPT2LMHeadModel, first: int, last: int, multiply: Multiply = multiply) -> Stage:
    layers = tuple(f"h.{layer}." for layer in range(first, last + 1))
    ends = ("wte.", "wpe.") * (first == 0) + ("ln_f.", "wte.") * (last == LAST)
    weights = {name: w for name, w in initial_weights(model).items() if name.startswith(layers + ends)}
    return Stage(first, last, {name: w.requires_grad_() for name, w in weights.items()}, multiply)


def attention(x: Tensor, w: Weights, layer: str, heads: int, multiply: Multiply = multiply) -> Tensor:
    qkv = linear(norm(x, w, layer + "ln_1"), w, layer + "attn.c_attn", multiply)
    return x + linear(attend(qkv, heads), w, layer + "attn.c_proj", multiply)


def feed_forward(x: Tensor, w: Weights, layer: str, multiply: Multiply = multiply) -> Tensor:
    wide = gelu(linear(norm(x, w, layer + "ln_2"), w, layer + "mlp.c_fc", multiply))
    return x + linear(wide, w, layer + "mlp.c_proj", multiply)


def attend(qkv: Tensor, heads: int) -> Tensor:
    """Causal attention over the fused projection, `[batch, seq, qkv · heads · head_dim]`."""
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def norm(x: Tensor, w: Weights, name: str) -> Tensor:
    return F.layer_norm(x, (SIZE.hidden,), w[name + ".weight"], w[name + ".bias"])


def linear(x: Tensor, w: Weights, name: str, multiply: Multiply = multiply) -> Tensor:
    return multiply(w[name + ".bias"], x.flatten(0, -2), w[name + ".weight"]).unflatten(0, x.shape[:-1])
