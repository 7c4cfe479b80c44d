"""Fields of features that points read by interpolation: lines, planes and a volume, each by a function of its name."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

POINTS, FEATURES, SIDES = 24, 4, (4, 6, 8)
AXES = {"points": ("points", "xyz"), "target": ("points",)}


class Field(nn.Module):
    """Features on a grid [1, features, *sides], which points [points, axes] read."""

    def __init__(self, sides: Sequence[int], **how: Any) -> None:
        super().__init__()
        self.grid = nn.Parameter(0.1 * torch.randn(1, FEATURES, *sides) + 0.5)
        self.how = {"align_corners": True, **how}

    def forward(self, at: Tensor) -> Tensor:
        grid, at = self.grid, at.flip(-1)
        if grid.dim() == 3:  # a line is a plane of one row
            grid, at = grid.unsqueeze(2), torch.cat([at, torch.zeros_like(at)], -1)
        at = at.view(1, -1, *[1] * (grid.dim() - 3), grid.dim() - 2)
        return F.grid_sample(grid, at, **self.how).flatten(2)[0].t()  # type: ignore[no-any-return]


class Net(nn.Module):
    """The points move before they are read, so that they have a gradient too."""

    def __init__(self, read: Callable[["Net", Tensor], Tensor], **how: Any) -> None:
        super().__init__()
        x, y, z = SIDES
        self.move, self.decode = nn.Linear(3, 3), nn.Linear(FEATURES, 1)
        self.line, self.plane, self.volume = Field((x,), **how), Field((x, y), **how), Field((x, y, z), **how)
        self.read = read

    def forward(self, points: Tensor, target: Tensor) -> Tensor:
        found = self.read(self, points + 0.3 * self.move(points).tanh())
        return F.mse_loss(self.decode(found)[:, 0], target)


def volume(net: Net, at: Tensor) -> Tensor:
    return net.volume(at)  # type: ignore[no-any-return]


def geometric(net: Net, at: Tensor) -> Tensor:
    """A sum of products, as GA-Planes with a linear decoder."""
    line, plane = net.line(at[:, :1]), net.plane(at[:, :2])
    return line * plane + plane.square() + net.volume(at)  # type: ignore[no-any-return]


def _net(
    read: Callable[[Net, Tensor], Tensor], **how: Any
) -> tuple[nn.Module, list[dict[str, Tensor]], dict[str, Any]]:
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(2):
        points = 2.4 * torch.rand(POINTS, 3, generator=draw, dtype=torch.float64) - 1.2
        batches.append({"points": points, "target": (points.square().sum(-1) < 0.8).double()})
    return Net(read, **how).double(), batches, AXES


net_volume = functools.partial(_net, volume)
net_geometric = functools.partial(_net, geometric)
net_nearest = functools.partial(_net, geometric, mode="nearest", align_corners=False)
net_reflected = functools.partial(_net, geometric, padding_mode="reflection", align_corners=False)
net_border = functools.partial(_net, geometric, padding_mode="border")
