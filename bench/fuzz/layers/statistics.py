"""Statistics of a batch, and buffers that follow them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Batched(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class Tracked(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(hidden))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen.mul_(0.9).add_(x.mean((0, 1)), alpha=0.1)
        return x * 0.9


class Statistics(nn.Module):
    """Norms by a batch's statistics, of a channel, of groups of them or of merged axes, with buffers and without."""

    def __init__(self, hidden: int, seq: int, kind: str) -> None:
        super().__init__()
        self.kind, self.lin = kind, nn.Linear(hidden, hidden)
        match kind:
            case "instance":
                self.norm = nn.InstanceNorm1d(hidden, affine=True, track_running_stats=True)
            case "instance alone":
                self.norm = nn.InstanceNorm1d(hidden, affine=True)
            case "instance image":
                self.norm = nn.InstanceNorm2d(2, track_running_stats=True)
            case "sequence":
                self.norm = nn.BatchNorm1d(seq, affine=False)
            case "cumulative":
                self.norm = nn.BatchNorm1d(hidden, momentum=None)
            case "stateless":
                self.norm = nn.BatchNorm1d(hidden, track_running_stats=False)
            case "groups":
                self.norm = nn.GroupNorm(2, hidden)
            case "rows" | "frozen":
                self.norm = nn.BatchNorm1d(hidden)
            case _:
                self.norm = nn.BatchNorm2d(2)

    def train(self, mode: bool = True) -> "Statistics":
        super().train(mode)
        self.norm.train(mode and self.kind != "frozen")
        return self

    def forward(self, x: Tensor) -> Tensor:
        y = self.lin(x)
        match self.kind:
            case "sequence":
                return x + self.norm(y)
            case "rows":
                return x + self.norm(y.flatten(0, 1)).view(y.shape)
            case "image" | "instance image":
                return x + self.norm(y.unflatten(-1, (2, -1)).transpose(1, 2)).transpose(1, 2).flatten(2)
        return x + self.norm(y.transpose(1, 2)).transpose(1, 2)


class Observed(nn.Module):
    """Buffers that a module's own forward changes: means, variances, largest values, counts, nearest codes."""

    def __init__(self, hidden: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("seen", torch.ones(hidden))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.steps += 1
                match self.kind:
                    case "variance":
                        self.seen.lerp_(x.var((0, 1)), 0.2)
                    case "largest":
                        self.seen.copy_(torch.maximum(self.seen * 0.9, x.abs().amax((0, 1))))
                    case "everything":
                        self.seen.fill_(x.abs().max())
                    case "last":
                        self.seen.copy_(x[-1, -1])
                    case "counts":
                        self.seen += F.one_hot(x.argmax(-1), x.shape[-1]).sum((0, 1))
                    case _:
                        self.seen += 0.1 * (x.mean((0, 1)) - self.seen) / self.steps
        return x / (1 + self.seen.abs()) + x


class ByHand(nn.Module):
    """A batch norm in plain operators, over the axes that it is given."""

    def __init__(self, hidden: int, over: tuple[int, ...]) -> None:
        super().__init__()
        self.over, self.scale, self.shift = over, nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.zeros(hidden))

    def forward(self, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(x, self.over, keepdim=True, correction=0)
        return (x - mean) * (var + 1e-5).rsqrt() * self.scale + self.shift
