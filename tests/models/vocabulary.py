"""Losses of a language model's logits, each by a function of its name, with a head of its own or a tied one."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, SEQ, HIDDEN, VOCAB, IGNORED = 4, 2, 4, 12, 5
AXES = {"tokens": ("batch", "seq"), "labels": ("batch", "seq"), "chances": ("batch", "seq", "vocab")}


class Net(nn.Module):
    """`loss` computes the loss of logits [batch * seq, vocab], labels, chances [batch * seq, vocab] and the net."""

    def __init__(self, loss: Callable[..., Tensor], *, tied: bool) -> None:
        super().__init__()
        self.words, self.middle = nn.Embedding(VOCAB, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCAB, bias=not tied)
        if tied:
            self.head.weight = self.words.weight
        self.register_buffer("weights", torch.rand(VOCAB, generator=torch.Generator().manual_seed(2)) + 0.5)
        self.loss = loss

    def forward(self, tokens: Tensor, labels: Tensor, chances: Tensor) -> Tensor:
        logits = 3 * self.head(self.middle(self.words(tokens)).tanh())
        return self.loss(logits.flatten(0, 1), labels.flatten(), chances.flatten(0, 1), self)


def smoothed(x: Any, y: Any, p: Any, net: Any) -> Tensor:
    return F.cross_entropy(x, y, label_smoothing=0.1, ignore_index=IGNORED)


def weighted(x: Any, y: Any, p: Any, net: Any) -> Tensor:
    return F.cross_entropy(x, y, weight=net.weights, ignore_index=IGNORED)


def weighted_and_smoothed(x: Any, y: Any, p: Any, net: Any) -> Tensor:
    return F.cross_entropy(x, y, weight=net.weights, label_smoothing=0.2)


def of_each(x: Any, y: Any, p: Any, net: Any) -> Tensor:
    losses = F.cross_entropy(x, y, reduction="none", label_smoothing=0.1, ignore_index=IGNORED)
    return (losses * (y != 3)).sum() / (y != 3).sum()


def summed(x: Any, y: Any, p: Any, net: Any) -> Tensor:
    return F.cross_entropy(x, y, reduction="sum", weight=net.weights) / 10


def of_chances(x: Any, y: Any, p: Any, net: Any) -> Tensor:
    return F.cross_entropy(x, p, weight=net.weights, label_smoothing=0.1)


def along_the_sequence(x: Any, y: Any, p: Any, net: Any) -> Tensor:
    x, y = x.unflatten(0, (BATCH, SEQ)).transpose(1, 2), y.unflatten(0, (BATCH, SEQ))
    return F.cross_entropy(x, y, label_smoothing=0.1)


def likelihood(x: Any, y: Any, p: Any, net: Any) -> Tensor:
    return F.nll_loss(x.log_softmax(-1), y, weight=net.weights, ignore_index=IGNORED)


def by_hand(x: Any, y: Any, p: Any, net: Any) -> Tensor:
    """Label smoothing and a z-loss, of a logsumexp and the score of the label."""
    total, score = x.logsumexp(-1), x.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    smooth = total - x.mean(-1)
    return (0.9 * (total - score) + 0.1 * smooth).mean() + 1e-2 * total.square().mean()


def picked(x: Any, y: Any, p: Any, net: Any) -> Tensor:
    """In another type, as autocast does."""
    return -x.to(torch.float64).log_softmax(-1)[torch.arange(BATCH * SEQ), y].mean()


def shifted(x: Any, y: Any, p: Any, net: Any) -> Tensor:
    """As Megatron-LM writes it."""
    x = x - x.amax(-1, keepdim=True)
    return (x.exp().sum(-1).log() - x.gather(-1, y[:, None])[:, 0]).mean()


def entropy(x: Any, y: Any, p: Any, net: Any) -> Tensor:
    return F.cross_entropy(x, y) - 0.1 * (x.softmax(-1) * x.log_softmax(-1)).sum(-1).mean()


def distilled(x: Any, y: Any, p: Any, net: Any) -> Tensor:
    return F.kl_div((x / 2).log_softmax(-1), (p * 5).softmax(-1), reduction="batchmean")


def confident(x: Any, y: Any, p: Any, net: Any) -> Tensor:
    """Weighted by how sure it is, and of how well it guesses."""
    value, _ = x.softmax(-1).max(-1)
    right = (x.argmax(-1) == y).to(x.dtype)
    return (F.cross_entropy(x, y, reduction="none") * (value.detach() + right)).mean() + x.max(-1)[0].mean()


def lowest(x: Any, y: Any, p: Any, net: Any) -> Tensor:
    value, at = x.min(-1)
    return (value + x.amin(-1) + p.gather(-1, at[:, None])[:, 0]).square().mean()


LOSSES = (smoothed, weighted, weighted_and_smoothed, of_each, summed, of_chances, along_the_sequence, likelihood)
LOSSES += (by_hand, picked, shifted, entropy, distilled, confident, lowest)


def _batch(draw: torch.Generator) -> dict[str, Tensor]:
    tokens, labels = (torch.randint(VOCAB, (BATCH, SEQ), generator=draw) for _ in range(2))
    return {"tokens": tokens, "labels": labels, "chances": torch.rand(BATCH, SEQ, VOCAB, generator=draw).double()}


def _net(loss: Callable[..., Tensor], tied: bool) -> tuple[nn.Module, list[dict[str, Tensor]], dict[str, Any]]:
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(1)
    return Net(loss, tied=tied).double(), [_batch(draw), _batch(draw)], AXES


for _loss in LOSSES:
    globals()[f"net_{_loss.__name__}"] = functools.partial(_net, _loss, False)
    globals()[f"tied_{_loss.__name__}"] = functools.partial(_net, _loss, True)
