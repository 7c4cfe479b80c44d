"""Two readers share a gather, and each of their parts in time gives a part of its gradient."""

import torch
from torch import Tensor, nn

B, S, H, V = 4, 2, 6, 2
A, C = 2, 2


class ByHand(nn.Module):
    """A batch norm in plain operators, over the axes that it is given."""

    def __init__(self, hidden: int, over: tuple[int, ...]) -> None:
        super().__init__()
        self.over, self.scale, self.shift = over, nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.zeros(hidden))

    def forward(self, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(x, self.over, keepdim=True, correction=0)
        return (x - mean) * (var + 1e-5).rsqrt() * self.scale + self.shift


class Gates(nn.Module):
    def __init__(self, hidden: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, experts, bias=False)
        self.weight = nn.Parameter(torch.randn(experts, hidden, hidden) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.einsum("bse,bsh,ehk->bsk", self.gate(x).softmax(-1), x, self.weight)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(V, H)
        self.h = nn.ModuleList([ByHand(6, (1, 2)), Gates(6, 2)])
        self.head = nn.Linear(H, H, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, terms = self.front(x), []
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
            "x": torch.randn(B, S, V, generator=g, dtype=torch.float64),
            "y": torch.randn(B, S, H, generator=g, dtype=torch.float64),
        }
        for _ in range(1)
    ]
    return Net().to(torch.float64), batches, {"x": ("batch", "seq", "feature"), "y": ("batch", "seq", "target")}
