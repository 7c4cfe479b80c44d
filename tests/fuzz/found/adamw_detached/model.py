import torch
from torch import Tensor, nn

B, S, H, V = 5, 3, 8, 6


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


class Tracked(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(hidden))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen.mul_(0.9).add_(x.mean((0, 1)), alpha=0.1)
        return x * 0.9


class Plain(nn.Module):
    def __init__(self, hidden: int, bias: bool) -> None:
        super().__init__()
        self.lin = nn.Linear(hidden, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x)


class BareMlp(nn.Module):
    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(V, H)
        self.h = nn.ModuleList([Detached(8, False), Tracked(8), Plain(8, True), BareMlp(8, 32)])
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
