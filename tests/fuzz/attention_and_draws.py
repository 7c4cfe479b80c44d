"""Random numbers and dropout; attention; lookups."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.fuzz.case import case, module

torch.manual_seed(0)  # the weights are the same, whatever ran before


def heads(x: Tensor) -> Tensor:
    """Two heads: [batch, seq, hidden] becomes [batch, head, seq, of a head]."""
    return x.unflatten(-1, (2, -1)).transpose(1, 2)


def causal(net: Any, x: Tensor) -> Tensor:
    """Causal attention of two heads, [batch, seq, hidden]."""
    q, k, v = (heads(part(x)) for part in (net.q, net.k, net.v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


@case(x="batch 2, seq 12, feature 8", refused="E0408")
@module(q=nn.Linear(8, 8), k=nn.Linear(8, 8), v=nn.Linear(8, 8))
def causal_parts_out_of_order(net: Any, x: Tensor) -> Tensor:
    """Causal attention of two heads.

    mesh g0(tp = 1)
    split model by seq into ep parts [[1, 0], [4, 3, 5], [2]]
    assign model to g0
    """
    return causal(net, x).square().mean()


@case(x="batch 2, seq 6, hidden 4", y="batch 2, seq 6, hidden 4")
@module(q=nn.Linear(4, 4), k=nn.Linear(4, 4), v=nn.Linear(4, 4), out=nn.Linear(4, 4))
def slices_of_slices_of_keys(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """Causal attention of two heads.

    mesh g0(cp = 1)
    split model by seq into c = 3, n = 2
    assign model to g0
    """
    return (net.out(causal(net, x)) - y).square().mean()


@case(x="batch 4, seq 8, hidden 6", y="batch 4, seq 8, target 6", optimizer="adamw")
@module(q=nn.Linear(6, 6, bias=False), k=nn.Linear(6, 6), v=nn.Linear(6, 6, bias=False))
def part_of_a_bias(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """Keys with a bias: its gradient is zero but for rounding, by which AdamW divides; its parts in time are strided.

    mesh gpus(tp = 2)
    split model by hidden into tp where possible
    split model by head_dim into m = 3 where possible
    assign model to gpus
    """
    return (causal(net, x) - y).square().mean()


@case(x="batch 2, seq 13 < 8", y="batch 2, seq 13 < 8", optimizer="adamw")
@module(
    front=nn.Embedding(8, 8),
    q=nn.Linear(8, 8, bias=False),
    k=nn.Linear(8, 8),
    v=nn.Linear(8, 8, bias=False),
    head=nn.Linear(8, 8, bias=False),
)
def number_in_single(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """In float64, but for one number: a count over a count is float32. The keys' bias has a gradient of rounding.

    mesh gpus(dp = 2)
    split model by batch into dp
    assign model to gpus
    """
    x = net.front(x)
    x = x + 0.5 * x / (1 + ((x > 0).sum() / x.numel() + x.mean()).abs())
    return F.cross_entropy(net.head(x + causal(net, x)).flatten(0, 1), y.flatten())


@case(x="batch 4 < 12", y="batch 4 < 12")
@module(embed=nn.Embedding(12, 8), head=nn.Linear(8, 12))
def drawn_among_split_classes(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """Goes on with a class that it draws from its scores.

    mesh gpus(tp = 2)
    split model by vocab into tp
    assign model to gpus
    """
    scores = net.head(net.embed(x))
    guess = torch.multinomial(scores.detach().softmax(-1), 1).squeeze(-1)
    return F.cross_entropy(scores, y) + F.cross_entropy(net.head(net.embed(guess)), y)


@case(x="batch 4, seq 6, feature 3", optimizer="adamw")
@module(a=nn.Linear(3, 8), b=nn.Linear(8, 8), c=nn.Linear(8, 3))
def draws_of_what_learns(net: Any, x: Tensor) -> Tensor:
    """Noise around a learned mean, and chances that learn: PyTorch gives both a gradient of zeros, not none.

    mesh gpus(dp = 2)
    split model by seq into dp
    split model by batch into m = 2
    assign model to gpus
    """
    noise = torch.normal(net.a(x), 0.1)
    return net.c(noise * torch.bernoulli(net.b(noise).sigmoid())).square().mean()


@case(x="batch 8, feature 4", y="batch 8 < 2")
@module(first=nn.Linear(4, 8), head=nn.Linear(8, 2), all=nn.Dropout(1.0))
def dropped_whole_and_empty(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """Dropout of everything and of nothing: neither takes a number, and both are split.

    mesh gpus(pp = 2)
    split model by batch into m = [3, 3, 2]
    let stage = balance(model, 2)
    recompute model
    assign stage[s] to gpus[pp = s] for s in 0..2
    """
    empty = F.dropout(x[:, :0], 0.5)
    h = net.first(torch.cat([empty, F.dropout(x, 0.3)], -1))
    return F.cross_entropy(net.head(h + net.all(h)), y) + empty.sum() + torch.randn(0).sum()


@module(lin=nn.Linear(6, 6))
def called_twice(net: Any, x: Tensor) -> Tensor:
    return net.lin(net.lin(x).tanh())


@case(x="batch 2, seq 2 < 5", y="batch 2, seq 2, target 6")
@module(front=nn.Embedding(5, 6), twice=called_twice, head=nn.Linear(6, 6, bias=False))
def normal_of_addends(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """Numbers are drawn around what a product gives, of which each part in time has an addend.

    mesh gpus(tp = 1)
    split model by "hidden.1" into n = 2
    assign model to gpus
    """
    x = net.twice(net.front(x))
    loss = (net.head(x) - y).square().mean() + 0.1 * torch.normal(x, 0.5).mean()
    return loss + torch.normal(net.head(x), 0.1).square().mean()


@case(t="batch 4, seq 6 < 12", y="batch 4 < 5", optimizer="adamw")
@module(bag=nn.EmbeddingBag(12, 8, mode="mean", padding_idx=2), out=nn.Linear(8, 5))
def embedding_bag(net: Any, t: Tensor, y: Tensor) -> Tensor:
    """A bag whose operator has results that nothing reads, and that know nothing of `hidden`.

    mesh gpus(tp = 2)
    split model by hidden into tp
    assign model to gpus
    """
    return F.cross_entropy(net.out(net.bag(t)), y)


@case(x="batch 8, feature 4", y="batch 8 < 2")
@module(first=nn.Linear(4, 8), head=nn.Linear(8, 2))
def repeated_rows(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """Rows that an index repeats, as a mixture does with its tokens: they are split with the batch.

    mesh gpus(pp = 2)
    split model by batch into m = 4
    let stage = balance(model, 2)
    assign stage[s] to gpus[pp = s] for s in 0..2
    for m in 0..3:
        order stage[0].bwd[m = m] -> stage[0].fwd[m = m + 1]
    """
    h = net.first(x)[torch.arange(x.shape[0]).repeat_interleave(2)]
    return F.cross_entropy(net.head(F.dropout(h, 0.2).view(x.shape[0], 2, 8).sum(1)), y)


@case(u="batch 4, x 10, channel 1")
@module(lift=nn.Linear(1, 4), project=nn.Linear(4, 1), weight=nn.Parameter(torch.randn(4, 4, 3, dtype=torch.cdouble)))
def written_spectrum(net: Any, u: Tensor) -> Tensor:
    """A layer of a Fourier neural operator: the lowest frequencies are mixed and written into an empty spectrum. Torch
    does not differentiate writes into a slice of complex numbers.

    mesh gpus(dp = 2)
    split model by batch into m = 2
    split model by hidden into dp
    assign model to gpus
    """
    spectrum = torch.fft.rfft(net.lift(u).transpose(1, 2))
    mixed = torch.zeros_like(spectrum)
    mixed[..., :3] = torch.einsum("bix,iox->box", spectrum[..., :3], net.weight)
    mixed[..., 4] = spectrum[..., 3]
    smooth = torch.fft.irfft(mixed, n=u.shape[1]).transpose(1, 2).relu()
    return (net.project(smooth) - u).square().mean()
