"""Indices that count along the batch, each by a function of its name: rows pick elements of their own."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

B, S, H, CLASSES = 8, 6, 8, 4


class Net(nn.Module):
    """`read` computes the loss of the scores of every token, and the inputs."""

    def __init__(self, read: Callable[..., Tensor]) -> None:
        super().__init__()
        self.emb, self.a, self.b = nn.Embedding(16, H), nn.Linear(H, H), nn.Linear(H, H)
        self.head, self.read = nn.Linear(H, CLASSES), read

    def forward(self, tokens: Tensor, last: Tensor, two: Tensor, labels: Tensor) -> Tensor:
        x = self.emb(tokens)
        x = x + self.a(x).relu()
        return self.read(self.head(x + self.b(x).tanh()), tokens, last, two, labels)


def last_token(x: Any, tokens: Any, last: Any, two: Any, labels: Any) -> Tensor:
    return F.cross_entropy(x[torch.arange(B), last], labels)


def label_of_each(x: Any, tokens: Any, last: Any, two: Any, labels: Any) -> Tensor:
    return -x.mean(1).log_softmax(-1)[range(B), labels].mean()


def with_a_slice_between(x: Any, tokens: Any, last: Any, two: Any, labels: Any) -> Tensor:
    return x[torch.arange(B), :, labels].square().sum(1).mean()


def several_tokens(x: Any, tokens: Any, last: Any, two: Any, labels: Any) -> Tensor:
    return F.cross_entropy(x[torch.arange(B).unsqueeze(1), two].flatten(0, 1), two.flatten() % CLASSES)


def sequence_first(x: Any, tokens: Any, last: Any, two: Any, labels: Any) -> Tensor:
    return x.transpose(0, 1)[last, torch.arange(B)].square().mean()


def two_that_count(x: Any, tokens: Any, last: Any, two: Any, labels: Any) -> Tensor:
    return x[torch.arange(B)[:, None], torch.arange(S), tokens % CLASSES].square().mean()


def all_rows(x: Any, tokens: Any, last: Any, two: Any, labels: Any) -> Tensor:
    return x[torch.arange(B)].square().mean()


def written(x: Any, tokens: Any, last: Any, two: Any, labels: Any) -> Tensor:
    x = x.clone()
    x[torch.arange(B), last] = 0.0
    x[torch.arange(B), :, labels] = x[:, :, 0] * 2
    return x.square().mean()


def added(x: Any, tokens: Any, last: Any, two: Any, labels: Any) -> Tensor:
    return x.index_put((torch.arange(B)[:, None], two), x[:, :2], accumulate=True).square().mean()


READS = (last_token, label_of_each, with_a_slice_between, several_tokens, sequence_first, two_that_count, all_rows)
READS += (written, added)


def batch(draw: torch.Generator) -> dict[str, Tensor]:
    def numbers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=draw)

    last = numbers(-2, S, B)  # negative ones count from the end
    return {"tokens": numbers(0, 16, B, S), "last": last, "two": numbers(0, S, B, 2), "labels": numbers(0, CLASSES, B)}


def _net(read: Callable[..., Tensor]) -> tuple[nn.Module, list[dict[str, Tensor]], dict[str, tuple[str, ...]]]:
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(1)
    axes = {"tokens": ("batch", "seq"), "last": ("batch",), "two": ("batch", "which"), "labels": ("batch",)}
    return Net(read).double(), [batch(draw), batch(draw)], axes


for _read in READS:
    globals()[f"net_{_read.__name__}"] = functools.partial(_net, _read)
