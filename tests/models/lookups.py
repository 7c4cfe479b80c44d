"""Tables that are read and written at indices, each by a function of its name."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

ROWS, WIDTH, POINTS = 12, 4, 24
AXES = {"points": ("points", "feature"), "at": ("points",), "target": ("points", "feature")}


class Net(nn.Module):
    """`read` makes of points, and where in the table they are, as many rows."""

    def __init__(self, read: Callable[["Net", Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.table, self.grid = nn.Parameter(torch.randn(ROWS, WIDTH)), nn.Parameter(torch.randn(4, 6, WIDTH))
        self.rise, self.read = nn.Linear(WIDTH, WIDTH), read

    def forward(self, points: Tensor, at: Tensor, target: Tensor) -> Tensor:
        return (self.read(self, self.rise(points).tanh(), at) - target).square().mean()


def indexed(net: Net, x: Tensor, at: Tensor) -> Tensor:
    """Negative numbers count from the end."""
    return x * net.table[at - 2]


def selected(net: Net, x: Tensor, at: Tensor) -> Tensor:
    return x * net.table.index_select(0, at)


def of_two(net: Net, x: Tensor, at: Tensor) -> Tensor:
    return x * net.grid[at % 4, at % 6]


def scattered(net: Net, x: Tensor, at: Tensor) -> Tensor:
    """Points are summed in cells, the cells change, and points read them."""
    cells = torch.scatter_add(net.table, 0, at.unsqueeze(1).expand(-1, WIDTH), x)
    return x + cells.tanh().index_select(0, at)


def added(net: Net, x: Tensor, at: Tensor) -> Tensor:
    cells = net.table.index_add(0, at, x, alpha=0.5)
    return x + cells.tanh()[at]


def one_row(net: Net, x: Tensor, at: Tensor) -> Tensor:
    """Two rows of twelve: the last of the table, and one of what becomes of it."""
    return x * net.table[-1] + net.table.sin().select(0, 4)


def each_row(net: Net, x: Tensor, at: Tensor) -> Tensor:
    """All rows one by one, each times its number, and the rows that become of them."""
    rows = net.table.sin()
    changed = torch.stack([rows[i] * (i + 1) for i in range(ROWS)])
    return x + (changed.tanh() * net.table)[at]


def unbound(net: Net, x: Tensor, at: Tensor) -> Tensor:
    rows = net.table.sin().unbind(0)
    return x * rows[2] + torch.stack([row.cos() for row in rows])[at]


def made_of_sums(net: Net, x: Tensor, at: Tensor) -> Tensor:
    """A table that is made of as many sums over the points."""
    made = torch.stack([(x * (i + 1)).sin().mean(0) for i in range(ROWS)])
    return x + (made * net.table)[at]


def largest(net: Net, x: Tensor, at: Tensor) -> Tensor:
    """Of the points in a cell, and what is there, the largest; points with equal numbers share the gradient."""
    x = x + (x.round() - x).detach()
    cells = net.table.scatter_reduce(0, at.unsqueeze(1).expand(-1, WIDTH), x, "amax")
    return x + cells.tanh()[at]


def smallest(net: Net, x: Tensor, at: Tensor) -> Tensor:
    """Of the points in a cell the smallest. A cell that gets none keeps its own."""
    where = (at // 2).unsqueeze(1).expand(-1, WIDTH)
    cells = net.table.scatter_reduce(0, where, x, "amin", include_self=False)
    return x + cells.tanh()[at]


def largest_alone(net: Net, x: Tensor, at: Tensor) -> Tensor:
    """Only of the points; some come first in their cell in several parts, and some are as large as what is there."""
    x = x + (x.round() - x).detach()
    table = net.table + (net.table.round() - net.table).detach()
    cells = table.scatter_reduce(0, (at // 2).unsqueeze(1).expand(-1, WIDTH), x, "amax", include_self=False)
    return x + cells.tanh()[at]


def smallest_there(net: Net, x: Tensor, at: Tensor) -> Tensor:
    x = x + (x.round() - x).detach()
    table = net.table + (net.table.round() - net.table).detach()
    cells = table.scatter_reduce(0, at.unsqueeze(1).expand(-1, WIDTH), x, "amin")
    return x + cells.tanh()[at]


def largest_of_batches(net: Net, x: Tensor, at: Tensor) -> Tensor:
    """In the last of three axes, behind those that all operands have."""
    table = (net.table.t() * torch.ones(2, 1, 1, dtype=x.dtype)).contiguous()
    points = torch.stack([x.t().round() + x.t(), -x.t()])
    cells = table.scatter_reduce(2, at.expand(2, WIDTH, -1), points, "amax", include_self=False)
    return x + cells.tanh().sum(0).t()[at]


def largest_of_groups(net: Net, x: Tensor, at: Tensor) -> Tensor:
    """Points with a second axis that makes one with the first: three for each."""
    points = torch.stack([x, x.sin(), x.round()], 1).flatten(0, 1)
    where = torch.stack([at, at // 2, at // 3], 1).flatten()
    cells = net.table.scatter_reduce(0, where.unsqueeze(1).expand(-1, WIDTH), points, "amax")
    return x + cells.tanh()[at]


def averaged(net: Net, x: Tensor, at: Tensor) -> Tensor:
    cells = net.table.t().scatter_reduce(1, at.expand(WIDTH, -1), x.t(), "mean")
    return x + cells.tanh().t()[at]


def averaged_alone(net: Net, x: Tensor, at: Tensor) -> Tensor:
    """A cell that gets no point keeps its own."""
    where = (at // 2).unsqueeze(1).expand(-1, WIDTH)
    cells = net.table.scatter_reduce(0, where, x, "mean", include_self=False)
    return x + cells.tanh()[at]


def summed_alone(net: Net, x: Tensor, at: Tensor) -> Tensor:
    where = (at // 2).unsqueeze(1).expand(-1, WIDTH)
    cells = net.table.scatter_reduce(0, where, x, "sum", include_self=False)
    return x + cells.tanh()[at]


def summed(net: Net, x: Tensor, at: Tensor) -> Tensor:
    cells = net.table.scatter_reduce(0, at.unsqueeze(1).expand(-1, WIDTH), x, "sum")
    return x + cells.tanh()[at]


KINDS = (
    *(indexed, selected, of_two, scattered, added),
    *(one_row, each_row, unbound, made_of_sums),
    *(largest, largest_alone, smallest, smallest_there, largest_of_batches, largest_of_groups),
    *(averaged, averaged_alone, summed, summed_alone),
)


def _net(read: Callable[[Net, Tensor, Tensor], Tensor]) -> tuple[nn.Module, list[dict[str, Tensor]], dict[str, Any]]:
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(2):
        points, target = torch.randn(2, POINTS, WIDTH, generator=draw, dtype=torch.float64)
        batches.append({"points": points, "at": torch.randint(ROWS, (POINTS,), generator=draw), "target": target})
    return Net(read).double(), batches, AXES


for _kind in KINDS:
    globals()[f"net_{_kind.__name__}"] = functools.partial(_net, _kind)
