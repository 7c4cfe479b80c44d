import torch
import torch.nn.functional as F
from torch import Tensor, nn

B, H, C = 4, 8, 6


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.head = nn.Linear(H, 2 * H), nn.Linear(2 * H, H), nn.Linear(H, C)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.down(self.up(x).relu())), y)


def net():
    g = torch.Generator().manual_seed(0)
    batch = {"x": torch.randn(B, H, generator=g), "y": torch.randint(C, (B,), generator=g)}
    return Net(), [batch], {"x": ("batch", "feature"), "y": ("batch",)}
