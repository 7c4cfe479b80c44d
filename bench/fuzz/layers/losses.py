"""Random numbers, and terms of the loss."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Drops(nn.Module):
    def __init__(self, hidden: int, kind: str) -> None:
        super().__init__()
        self.lin, self.kind = nn.Linear(hidden, hidden), kind

    def forward(self, x: Tensor) -> Tensor:
        y = self.lin(x)
        match self.kind:
            case "attention":
                q = y.unflatten(-1, (2, -1)).transpose(1, 2)
                y = F.scaled_dot_product_attention(q, q, q, dropout_p=0.3).transpose(1, 2).flatten(2)
            case "path":
                y = y * x.new_empty((x.shape[0], 1, 1)).bernoulli_(0.7)
            case "channels":
                y = F.dropout1d(y.transpose(1, 2), 0.3).transpose(1, 2)
            case "noise":
                y = y * torch.rand_like(y) + torch.randn(y.shape[1:], dtype=y.dtype, device=y.device)
            case "around":
                y = torch.normal(y, 0.1)
            case "slopes":
                y = F.rrelu(y, training=True)
            case _:
                y = F.dropout(y.tanh(), 0.3)
        return x + y


class Detached(nn.Module):
    def __init__(self, hidden: int, quiet: bool) -> None:
        super().__init__()
        self.teacher, self.student, self.quiet = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden), quiet

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.quiet:
            with torch.no_grad():
                target = self.teacher(x)
        else:
            target = self.teacher(x).detach()
        return x + target * 0.1, (self.student(x) - target).square().mean()


class Product(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.lin = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.lin(x)
        return x + y, y.mean() * x.square().mean()


class Contrast(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        pooled = x.mean(1)
        logits = self.a(pooled) @ self.b(pooled).t()
        return x, F.cross_entropy(logits, torch.arange(x.shape[0], device=x.device))


class OverBatch(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.lin = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lin(x.mean(1))
        return x + ((h @ h.t()).softmax(-1) @ h).unsqueeze(1)
