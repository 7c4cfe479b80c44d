"""Attention over depth: each block reads a softmax mixture of the results of all blocks before it."""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key = nn.Parameter(torch.zeros(width)), nn.RMSNorm(width)
        self.norm, self.up, self.down = nn.RMSNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, past):
        v = torch.stack(past, 0)
        a = (self.key(v) @ self.query).softmax(0)
        x = (a[..., None] * v).sum(0)
        return self.down(F.silu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width=16, layers=6):
        super().__init__()
        self.embed, self.head = nn.Embedding(64, width), nn.Linear(width, 64)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, ids, labels):
        past = [self.embed(ids)]
        for layer in self.layers:
            past.append(layer(past))
        return F.cross_entropy(self.head(torch.stack(past).sum(0)).flatten(0, 1), labels.flatten())


def net():
    ids, labels = torch.randint(64, (8, 8)), torch.randint(64, (8, 8))
    return Net(), {"ids": ids, "labels": labels}, {"ids": ("batch", "seq"), "labels": ("batch", "seq")}


class Branches(nn.Module):
    """Two branches that read one result."""

    def __init__(self):
        super().__init__()
        self.enter, self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        x = self.enter(x)
        return F.mse_loss(self.left(x).relu() * self.right(x), x)


def branches():
    return Branches(), {"x": torch.randn(8, 8)}, {"x": ("batch", "feature")}
