"""What is computed from weights alone: a table of each block (a bias of positions), a weight in parts of its length,
one table that both blocks read, and a buffer that follows a weight; a weight divided by its largest element, and a
scale by a count of steps."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, POSITIONS = 8, 6


class Block(nn.Module):
    """A bias of every pair of positions, looked up in a short table; a product with a weight of length one."""

    index: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(2 * POSITIONS - 1) / 4)
        self.direction = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.length = nn.Parameter(torch.rand(WIDTH))
        along = torch.arange(POSITIONS)
        self.register_buffer("index", (along[:, None] - along + POSITIONS - 1).flatten())

    def forward(self, x: Tensor, shared: Tensor) -> Tensor:
        bias = self.table[self.index].view(POSITIONS, POSITIONS)
        scores = torch.softmax(x @ x.transpose(-2, -1) + bias + shared, -1)
        weight = self.direction / self.direction.norm(dim=1, keepdim=True) * self.length[:, None]
        return x + torch.tanh(F.linear(scores @ x, weight))


class Tables(nn.Module):
    def __init__(self, *, follows: bool) -> None:
        super().__init__()
        self.follows = follows
        self.shared = nn.Parameter(torch.randn(POSITIONS, POSITIONS) / 4)
        self.register_buffer("mean", torch.zeros(()))
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        shared = torch.tanh(self.shared)
        for layer in self.layers:
            x = layer(x, shared)
        if self.follows:
            with torch.no_grad():
                self.mean.lerp_(self.shared.mean(), 0.1)
        return F.mse_loss(x, y)


Built = tuple[nn.Module, dict[str, Tensor], dict[str, tuple[str, ...]]]


def tables(*, follows: bool = False) -> Built:
    """12 sequences of 6 positions."""
    torch.manual_seed(0)
    inputs = {name: torch.randn(12, POSITIONS, WIDTH) for name in ("x", "y")}
    return Tables(follows=follows), inputs, dict.fromkeys(inputs, ("batch", "seq", "width"))


def following() -> Built:
    """With a buffer that takes the mean of a weight."""
    return tables(follows=True)


class Scaled(nn.Module):
    """A weight whose largest element is one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        weight = self.weight / self.weight.abs().max()
        return F.mse_loss(x + torch.tanh(F.linear(x, weight)), y)


class Counted(nn.Module):
    """A scale that shrinks from step to step, before each of two layers."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.steps.add_(1)
        scale = torch.sigmoid(self.scale) * self.steps.rsqrt()
        for layer in self.layers:
            x = torch.tanh(layer(x * scale))
        return F.mse_loss(x, y)


def scaled() -> Built:
    _, inputs, names = tables()
    return Scaled(), inputs, names


def counted() -> Built:
    _, inputs, names = tables()
    return Counted(), inputs, names
