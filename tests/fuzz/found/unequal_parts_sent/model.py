import torch
from torch import Tensor, nn

B, H, W, F = 2, 3, 3, 8


class Net(nn.Module):
    """A product on rows of an image, made one axis, and another one."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.head = nn.Linear(2, F), nn.Linear(F, F, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.head(self.front(x).flatten(1, 2)) - y.flatten(1, 2)).square().mean()


def net():
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(B, H, W, n, generator=g, dtype=torch.float64) for n in (2, F))
    axes = ("batch", "height", "width")
    return Net().double(), [{"x": x, "y": y}], {"x": (*axes, "feature"), "y": (*axes, "target")}
