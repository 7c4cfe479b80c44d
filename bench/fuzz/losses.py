"""Losses of a vocabulary that random models end in; a reproduction contains the text of the one that it uses.

A loss takes scores [batch, seq, vocab] and labels [batch, seq], of which negative ones count for nothing.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def smoothed(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten(), label_smoothing=0.1)


def weighted(scores: Tensor, labels: Tensor) -> Tensor:
    weight = torch.linspace(0.5, 2, scores.shape[-1], dtype=scores.dtype, device=scores.device)
    return F.cross_entropy(scores.transpose(1, 2), labels, weight=weight, label_smoothing=0.2)


def of_each(scores: Tensor, labels: Tensor) -> Tensor:
    losses = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)
    return (losses.sum(1) / (labels >= 0).sum(1).clamp(min=1)).mean()


def of_chances(scores: Tensor, labels: Tensor) -> Tensor:
    chances = F.one_hot(labels.clamp(min=0), scores.shape[-1]).to(scores.dtype)
    return F.cross_entropy(scores.flatten(0, 1), chances.flatten(0, 1), label_smoothing=0.1)


def likelihood(scores: Tensor, labels: Tensor) -> Tensor:
    return F.nll_loss(scores.log_softmax(-1).flatten(0, 1), labels.flatten())


def by_hand(scores: Tensor, labels: Tensor) -> Tensor:
    total = scores.logsumexp(-1)
    score = scores.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return ((total - score) * (labels >= 0)).mean() + 0.01 * total.square().mean()


def shifted(scores: Tensor, labels: Tensor) -> Tensor:
    scores = scores - scores.amax(-1, keepdim=True).detach()
    return (scores.exp().sum(-1).log() - scores.gather(-1, labels.clamp(min=0)[..., None])[..., 0]).mean()


def entropy(scores: Tensor, labels: Tensor) -> Tensor:
    return (scores.softmax(-1) * scores.log_softmax(-1)).sum(-1).mean() + scores.max(-1)[0].mean()


def distilled(scores: Tensor, labels: Tensor) -> Tensor:
    teacher = F.one_hot(labels.clamp(min=0), scores.shape[-1]).to(scores.dtype).softmax(-1)
    return F.kl_div((scores / 2).log_softmax(-1), teacher, reduction="sum") / labels.numel()


def accurate(scores: Tensor, labels: Tensor) -> Tensor:
    right = (scores.argmax(-1) == labels).to(scores.dtype)
    return (scores.logsumexp(-1) * (1 + right)).mean() - scores.amin(-1).mean()
