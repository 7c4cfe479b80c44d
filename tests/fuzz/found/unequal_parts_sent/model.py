import torch
import torch.nn.functional as F
from torch import Tensor, nn

B, S, H, V = 2, 9, 8, 2
A, C = 2, 3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(V, H)
        self.h = nn.ModuleList([])
        self.head = nn.Linear(H, H, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        y = y.flatten(1, 2)
        x, terms = self.front(x).flatten(1, 2), []
        for layer in self.h:
            x = layer(x)
            if isinstance(x, tuple):
                x, term = x
                terms.append(term)
        loss = (self.head(x) - y).square().mean()
        for term in terms:
            loss = loss + term
        return loss


def net():
    g = torch.Generator().manual_seed(0)
    batches = [
        {
            "x": torch.randn(B, S // C, C, V, generator=g, dtype=torch.float64),
            "y": torch.randn(B, S // C, C, H, generator=g, dtype=torch.float64),
        }
        for _ in range(1)
    ]
    return (
        Net().to(torch.float64),
        batches,
        {"x": ("batch", "height", "width", "feature"), "y": ("batch", "height", "width", "target")},
    )
