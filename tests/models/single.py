"""A batch of one sample: its axis has a name, and no operator a dimension to cut."""

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return (self.down(self.up(x).relu()) - x).square().mean()


def one() -> tuple[nn.Module, dict[str, Tensor], dict[str, tuple[str, ...]]]:
    torch.manual_seed(0)
    return Net(), {"x": torch.randn(1, 8)}, {"x": ("batch", "feature")}
