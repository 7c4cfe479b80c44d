"""A buffer that nobody reads before it is overwritten: by a value whose axis is merged of two."""

import torch
from torch import Tensor, nn

B, S, H = 2, 3, 12


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front, self.head = nn.Linear(4, H // 2), nn.Linear(H, H)
        self.register_buffer("seen", torch.ones(H))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.front(x).flatten(2)
        if self.training:
            with torch.no_grad():
                self.seen.copy_(x[-1, -1])
        return (self.head(x / (1 + self.seen.abs())) - y).square().mean()


def net():
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(B, S, *last, generator=g, dtype=torch.float64) for last in ((2, 4), (H,)))
    return (
        Net().to(torch.float64),
        [{"x": x, "y": y}],
        {"x": ("batch", "seq", "stream", "feature"), "y": ("batch", "seq", "target")},
    )
