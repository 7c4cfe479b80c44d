import torch
from torch import Tensor, nn

B, S, H, V = 2, 2, 8, 10


class Detached(nn.Module):
    def __init__(self, hidden: int, quiet: bool) -> None:
        super().__init__()
        self.teacher, self.student, self.quiet = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden), quiet

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.quiet:
            with torch.no_grad():
                target = self.teacher(x)
        else:
            target = self.teacher(x).detach()
        return x + target * 0.1, (self.student(x) - target).square().mean()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(V, H)
        self.h = nn.ModuleList([Detached(8, True)])
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
    return Net().double(), batches, {"x": ("batch", "seq", "feature"), "y": ("batch", "seq", "target")}
