"""Layers that read grids at points, and tables at indices, which plans may cut."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Sampled(nn.Module):
    """Features that points of the activations read in a plane or a volume."""

    def __init__(self, hidden: int, sides: tuple[int, ...], mode: str, padding: str, align: bool) -> None:
        super().__init__()
        self.lin, self.grid = nn.Linear(hidden, len(sides)), nn.Parameter(0.5 * torch.randn(1, hidden, *sides))
        self.how = {"mode": mode, "padding_mode": padding, "align_corners": align}

    def forward(self, x: Tensor) -> Tensor:
        at = 1.5 * self.lin(x).tanh()
        at = at.view(1, *[1] * (self.grid.dim() - 4), *at.shape)
        found = F.grid_sample(self.grid, at, **self.how)
        return x + found.reshape(-1, *x.shape[:2]).movedim(0, -1)


class Cells(nn.Module):
    """Rows of a table that tokens name: they are read, or activations are reduced into them and all is read again.
    `one`: rows that the model names; `each`: all of them, one by one."""

    reads = True

    def __init__(self, hidden: int, cells: int, kind: str) -> None:
        super().__init__()
        self.table, self.cells, self.kind = nn.Parameter(torch.randn(cells, hidden)), cells, kind

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        at, table = ids % self.cells, self.table
        where = at.reshape(-1, 1).expand(-1, x.shape[-1])
        match self.kind:
            case "index":
                return x * table[at]
            case "select":
                return x * table.index_select(0, at.flatten()).view(x.shape)
            case "one":
                return x * table[-1] + table.sin()[1]
            case "each":
                table = torch.stack([row * (1 + i) for i, row in enumerate(table.sin().unbind(0))]) * table
            case "scatter":
                table = table.scatter_add(0, where, 0.1 * x.flatten(0, 1))
            case "largest":
                table = table.scatter_reduce(0, where, x.flatten(0, 1), "amax")
            case "smallest":
                table = table.scatter_reduce(0, where, x.flatten(0, 1), "amin", include_self=False)
            case "mean":
                table = table.scatter_reduce(0, where, x.flatten(0, 1), "mean")
            case _:
                table = table.index_add(0, at.flatten(), x.flatten(0, 1), alpha=0.1)
        return x + table.tanh()[at]


class Picked(nn.Module):
    """What activations are at some position of an axis, for all positions, or from each position to the next."""

    def __init__(self, hidden: int, kind: str) -> None:
        super().__init__()
        self.lin, self.kind = nn.Linear(hidden, hidden), kind

    def forward(self, x: Tensor) -> Tensor:
        y = self.lin(x).tanh()
        match self.kind:
            case "first" | "last":
                return x + y.select(1, 0 if self.kind == "first" else -1).unsqueeze(1)
            case "two":
                return x + (y[:, 0] * y[:, -2]).unsqueeze(1)
            case "sample":
                return x * y[1]
            case "feature":
                return x * y[..., -1].unsqueeze(-1)
            case "each":
                return x + torch.stack([row * (1 + i) for i, row in enumerate(y.unbind(1))], 1)
            case _:
                rows = [y[:, 0]]
                for i in range(1, y.shape[1]):
                    rows.append(0.5 * rows[-1] + y[:, i])
                return x + torch.stack(rows, 1)
