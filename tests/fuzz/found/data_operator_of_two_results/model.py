import torch
from torch import Tensor, nn


class Net(nn.Module):
    """Of two results of an operator on inputs one is read."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x.cummax(1).values).square().mean()


def net():
    g = torch.Generator().manual_seed(0)
    return Net(), [{"x": torch.randn(2, 6, 4, generator=g)} for _ in range(2)], {"x": ("batch", "seq", "feature")}
