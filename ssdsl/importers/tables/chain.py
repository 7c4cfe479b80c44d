"""A model of as many equal layers as a table has stages, on which its order is tried."""

from functools import cache

import torch
from torch import nn

from ssdsl.model.graph import Graph
from ssdsl.model.load.from_module import model_of
from ssdsl.model.module_to_graph import capture


class _Chain(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(2, 2, bias=False) for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = part(x)
        return x.sum()


@cache
def chain(layers: int, batch: int) -> Graph:
    """Its graph."""
    return capture(model_of(_Chain(layers), {"x": torch.zeros(batch, 2)}))
