"""Operators between layers: movements, reductions and scans, operators without a row."""

import torch
from torch import Tensor, nn


class Moves(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        match self.kind:
            case "flip":
                return x * 0.5 + x.flip(1)
            case "roll":
                return x + x.roll(1, 1)
            case "roll batch":
                return x + 0.5 * x.roll(1, 0)
            case "cat":
                a, b = x.chunk(2, -1)
                return torch.cat([b, a * 2], -1)
            case "stack":
                return torch.stack([x, x * 0.5], 2).mean(2)
            case "shift":
                return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1) + x
            case "mean":
                return x - x.mean(1, keepdim=True)
            case _:
                return (x.transpose(0, 1) * 2).transpose(0, 1)


class All(nn.Module):
    """Operators that need all of a dimension, the batch or the sequence, or whose parts tell each other something."""

    def __init__(self, kind: str, dim: int) -> None:
        super().__init__()
        self.kind, self.dim = kind, dim

    def forward(self, x: Tensor) -> Tensor:
        match self.kind:
            case "cumsum":
                return x + 0.1 * x.cumsum(self.dim)
            case "cumprod":
                return x * (1 + 0.1 * x.tanh()).cumprod(self.dim)
            case "logcumsumexp":
                return x + 0.1 * x.logcumsumexp(self.dim)
            case "topk":
                places = torch.arange(x.shape[self.dim]).view(-1, *[1] * (x.dim() - 1 - self.dim))
                found = (x + 0.01 * places).topk(min(2, x.shape[self.dim]), self.dim)  # of equals torch takes any
                return x - 0.5 * found.values.sum(self.dim, keepdim=True)
            case "sort":
                return x.sort(self.dim).values + x
            case "max":
                return x - 0.5 * x.max(self.dim, keepdim=True).values
            case "var":
                return x / (1 + x.var(self.dim, keepdim=True))
            case "softmax":
                return x + x.softmax(self.dim)
            case _:
                return x - 0.1 * x.logsumexp(self.dim, keepdim=True)


class Unlisted(nn.Module):
    """Operators without a row: each device computes all of them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        match self.kind:
            case "batch":
                return x + 0.1 * x.renorm(2, 0, 1.0)
            case "hidden":
                return x + 0.1 * x.renorm(2, 2, 1.0)
            case "kthvalue":
                return x - x.kthvalue(1, 1, keepdim=True).values
            case "trace":
                return x * (1 + 0.01 * (x[:, 0].T @ x[:, 0]).trace())
            case _:
                y = x.transpose(1, 2) @ x + torch.eye(x.shape[2], dtype=x.dtype, device=x.device)
                return x + 0.1 * torch.linalg.inv_ex(y)[0].mean(1, keepdim=True)


class MinMax(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.lin = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        y = self.lin(x)
        return torch.minimum(torch.maximum(x, y), y.clamp(-1, 1) + 1)
