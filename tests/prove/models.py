"""Small models for programs to break: what an experiment found, noise, experts that rows are routed to, a scalar, what
asks how its operands lie in memory."""

import torch
import torch.nn.functional as F
from torch import nn

Given = tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]


class Found(nn.Module):
    """An operator without a row, that can be split along the batch alone."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.scale = nn.Linear(8, 8), nn.Linear(8, 8), nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.scale * self.down(self.up(x).renorm(2, 0, 1.0))).square().mean()


class Noisy(nn.Module):
    """Dropout, a channel at a time too, and noise."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(self.up(x + 0.1 * torch.randn_like(x)).relu(), 0.3)
        return F.dropout1d(self.down(y), 0.3).square().mean()


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x + y)


class ReadTwice(nn.Module):
    """Three layers read one input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), Sum()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.a(x) + self.b(x), x).square().mean()


def _given(model: nn.Module) -> Given:
    x = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))
    return model, {"x": x}, {"x": ("batch", "seq", "feature")}


def found() -> Given:
    return _given(Found())


def noisy() -> Given:
    return _given(Noisy())


def read_twice() -> Given:
    return _given(ReadTwice())


class Routed(nn.Module):
    """Each row goes to one of three experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.weight, self.bias = nn.Parameter(torch.randn(3, 4, 4)), nn.Parameter(torch.randn(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score, expert = self.gate(x).softmax(-1).max(-1)
        rows = torch.ops.ssdsl.routed_mm(x, self.weight, expert)
        return ((rows + self.bias[expert]).relu() * score[:, None]).square().mean()


def routed() -> Given:
    return Routed(), {"x": torch.randn(6, 4)}, {"x": ("batch", "feature")}


class Space(nn.Module):
    """Convolutions of 13 rows, with a step of two."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body, self.head = nn.Conv2d(2, 4, 5, 2, 2), nn.Conv2d(4, 4, 3, 1, 1), nn.Conv2d(4, 2, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x).relu()
        return self.head(y + self.body(y)).square().mean()


def space() -> Given:
    torch.manual_seed(0)
    return Space(), {"x": torch.randn(4, 2, 13, 6)}, {"x": ("batch", "channels", "height", "width")}


class Told(nn.Module):
    """Kernels that are told where their part lies, and a buffer that keeps what each example had."""

    memory: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8, bias=False), nn.GroupNorm(1, 6)
        self.register_buffer("memory", torch.zeros(4, 6, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.linear(x) + self.memory)
        self.memory.copy_(y.detach())
        most, _ = y.cumsum(-1).topk(3, -1)
        labels = torch.arange(24) % 8
        return F.cross_entropy(y.flatten(0, 1), labels) + most.square().mean()


def told() -> Given:
    torch.manual_seed(0)
    return _given(Told())


class Memory(nn.Module):
    """Complex pairs behind a gather, a merged view that is changed in place, a weight over its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("u", torch.ones(8) / 8**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.view_as_complex(self.up(x).unflatten(-1, (2, 4)).transpose(-1, -2).contiguous())
        y = torch.view_as_real(z * z).flatten(-2) * 0.5
        y.view(len(x), -1)[:, 3:9] += 1
        v = self.down.weight.detach() @ self.u
        return F.linear(y, self.down.weight / torch.dot(v, self.down.weight @ self.u)).square().mean()


def memory() -> Given:
    torch.manual_seed(0)
    return _given(Memory())
