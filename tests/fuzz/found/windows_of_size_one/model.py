import torch
from torch import Tensor, nn


class Net(nn.Module):
    """A transposed convolution makes two rows of one."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.down = nn.Linear(3, 4), nn.Conv2d(1, 2, 3, 2, 1)
        self.up = nn.ConvTranspose2d(2, 1, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.front(x)
        z = self.up(self.down(y.unsqueeze(1)), output_size=y.shape[1:])
        return (y + z.squeeze(1)).square().mean()


def net():
    g = torch.Generator().manual_seed(0)
    return (
        Net().double(),
        {"x": torch.randn(2, 2, 3, generator=g, dtype=torch.float64)},
        {"x": ("batch", "seq", "feature")},
    )
