import torch
import torch.nn.functional as F
from torch import Tensor, nn

B, S, H = 2, 12, 8


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(H, H) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p(x).view(B, S, 2, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).square().mean()


def net():
    g = torch.Generator().manual_seed(0)
    batches = [{"x": torch.randn(B, S, H, generator=g, dtype=torch.float64)}]
    return Net().to(torch.float64), batches, {"x": ("batch", "seq", "feature")}
