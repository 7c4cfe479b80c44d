"""Keys with a bias: its gradient is zero but for rounding, by which AdamW divides. Its parts in time are strided."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

B, S, H, HEADS = 4, 8, 6, 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(H, H, bias=False), nn.Linear(H, H), nn.Linear(H, H, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        q, k, v = (p(x).view(B, S, HEADS, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return (a.transpose(1, 2).reshape(B, S, H) - y).square().mean()


def net():
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(B, S, H, generator=g, dtype=torch.float64) for _ in range(2))
    dims = {"x": ("batch", "seq", "hidden"), "y": ("batch", "seq", "target")}
    return Net().to(torch.float64), [{"x": x, "y": y}], dims
