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
    """Rows of a table that tokens name: they are read, or activations are added to them and all is read again."""

    reads = True

    def __init__(self, hidden: int, cells: int, kind: str) -> None:
        super().__init__()
        self.table, self.cells, self.kind = nn.Parameter(torch.randn(cells, hidden)), cells, kind

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        at, table = ids % self.cells, self.table
        match self.kind:
            case "index":
                return x * table[at]
            case "select":
                return x * table.index_select(0, at.flatten()).view(x.shape)
            case "scatter":
                table = table.scatter_add(0, at.reshape(-1, 1).expand(-1, x.shape[-1]), 0.1 * x.flatten(0, 1))
            case _:
                table = table.index_add(0, at.flatten(), x.flatten(0, 1), alpha=0.1)
        return x + table.tanh()[at]
