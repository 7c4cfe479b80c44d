"""Projections, norms, recurrences, and what a module does with its weights."""

import torch
from torch import Tensor, nn


class Mlp(nn.Module):
    def __init__(self, hidden: int, ffn: int, bias: bool, act: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.up, self.down = nn.Linear(hidden, ffn, bias=bias), nn.Linear(ffn, hidden, bias=bias)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(getattr(nn.functional, self.act)(self.up(self.norm(x))))


class Plain(nn.Module):
    def __init__(self, hidden: int, bias: bool) -> None:
        super().__init__()
        self.lin = nn.Linear(hidden, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x)


class BareMlp(nn.Module):
    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


class Norm(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


class Position(nn.Module):
    def __init__(self, seq: int, hidden: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(seq, hidden) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table


class Rows(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.lin = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.lin(x.reshape(-1, x.shape[-1]))
        return rows.tanh().view(x.shape) + x


class Twice(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.lin = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(self.lin(x).tanh())


class Recurrent(nn.Module):
    def __init__(self, hidden: int, kind: str) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(hidden, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.rnn(x)[0]


class Frozen(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.lin = nn.Linear(hidden, hidden).requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(hidden))
        self.unused = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.lin(x) * self.scale


class Cast(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.lin = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.lin(x).float().sin().double()


class Parametrized(nn.Module):
    """A projection whose weight is computed: of a norm, of a largest singular value that buffers follow, orthogonal."""

    def __init__(self, hidden: int, kind: str) -> None:
        super().__init__()
        self.lin = getattr(nn.utils.parametrizations, kind)(nn.Linear(hidden, hidden))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.lin(x)
