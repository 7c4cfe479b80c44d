import torch
import torch.nn.functional as F
from torch import Tensor, nn

B, S, H = 2, 6, 4


class Net(nn.Module):
    """Causal attention of two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(H, H) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (2, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return (self.out(found) - y).square().mean()


def net():
    g = torch.Generator().manual_seed(0)
    batch = {name: torch.randn(B, S, H, generator=g, dtype=torch.float64) for name in "xy"}
    return Net().double(), [batch], dict.fromkeys("xy", ("batch", "seq", "hidden"))
