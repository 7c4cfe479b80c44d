"""The smallest models on which the diagnostics of lowering show."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

Built = tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]
AXES = {"x": ("batch", "width")}


class Chain(nn.Module):
    """Two layers; with `shared`, both are the same; with `norm`, batch statistics stand between them."""

    def __init__(self, *, shared: bool = False, norm: bool = False) -> None:
        super().__init__()
        first = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
        second = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
        if shared:
            second[0].weight = first[0].weight
        self.layers = nn.ModuleList([first, second])
        self.norm = nn.BatchNorm1d(4) if norm else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.layers[1](self.norm(self.layers[0](x))), x)


def chain() -> Built:
    return Chain(), {"x": torch.randn(8, 4)}, AXES


def chain_shared() -> Built:
    return Chain(shared=True), {"x": torch.randn(8, 4)}, AXES


def chain_norm() -> Built:
    return Chain(norm=True), {"x": torch.randn(8, 4)}, AXES


class Centred(nn.Module):
    """A moving average is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("centre", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x - self.centre)


class Moving(nn.Module):
    """A moving average that one module reads and another one changes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Centred(), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        self.first.centre.mul_(0.9)
        return F.mse_loss(self.second(h), x)


def moving() -> Built:
    return Moving(), {"x": torch.randn(8, 4)}, AXES


class Merged(nn.Module):
    """Batch and sequence become one axis between two splits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[1](self.layers[0](x.flatten(0, 1)).tanh()).square().sum()


def merged() -> Built:
    return Merged(), {"x": torch.randn(8, 6, 4)}, {"x": ("batch", "seq", "width")}


class Summed(nn.Module):
    """The model itself adds up what two layers make, in front of two more."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.d(self.c(self.a(x) + self.b(x))), x)


def summed() -> Built:
    return Summed(), {"x": torch.randn(8, 4)}, AXES


class Branched(nn.Module):
    """The model itself has an activation in each of two branches, and compares them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.c(self.a(x).relu()), self.d(self.b(x).relu()))


def branched() -> Built:
    return Branched(), {"x": torch.randn(8, 4)}, AXES


def chain_statistics(parts: int) -> Built:
    """`chain_norm`, in which each part of the batch has its own statistics."""
    from ssdsl import micro_batch_statistics

    return micro_batch_statistics(Chain(norm=True), parts), {"x": torch.randn(8, 4)}, AXES


def chain_statistics_2() -> Built:
    return chain_statistics(2)


def chain_statistics_4() -> Built:
    return chain_statistics(4)


def chain_frozen() -> Built:
    """Its first layer is not trained."""
    model = Chain()
    model.layers[0].requires_grad_(False)
    return model, {"x": torch.randn(8, 4)}, AXES


class Signal(nn.Module):
    """A convolution along a line."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).square().mean()


def signal() -> Built:
    return Signal(), {"x": torch.randn(4, 2, 8)}, {"x": ("batch", "channels", "width")}


class Teacher(nn.Module):
    """A frozen teacher is the moving average of the network that learns from it (Grill et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
        self.teacher = copy.deepcopy(self.online).requires_grad_(False)
        self.head = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for old, new in zip(self.teacher.parameters(), self.online.parameters(), strict=True):
                old.data = old.data * 0.9 + new.data * 0.1
            wanted = self.teacher(y)
        return (self.head(self.online(x)) - wanted).square().mean()


def teacher() -> Built:
    views = {"x": torch.randn(8, 4), "y": torch.randn(8, 4)}
    return Teacher(), views, dict.fromkeys(views, ("batch", "width"))
