import torch
import torch.nn.functional as F
from torch import Tensor, nn

B, S, H, V = 9, 6, 6, 6


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


class Norm(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Embedding(V, H)
        self.h = nn.ModuleList([Detached(6, False), Norm(6)])
        self.head = nn.Linear(H, V, bias=False)
        self.head.weight = self.front.weight

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, terms = self.front(x), []
        for layer in self.h:
            x = layer(x)
            if isinstance(x, tuple):
                x, term = x
                terms.append(term)
        loss = F.cross_entropy(self.head(x).flatten(0, 1), y.flatten())
        for term in terms:
            loss = loss + term
        loss = loss + 0.01 * sum(w.square().sum() for w in self.parameters())
        return loss


def net():
    g = torch.Generator().manual_seed(0)
    x = torch.randint(V, (B, S), generator=g)
    y = torch.where(torch.rand(B, S, generator=g) < 0.3, -100, torch.randint(V, (B, S), generator=g))
    axes = {"x": ("batch", "seq"), "y": ("batch", "seq")}
    return Net().double(), {"x": x, "y": y}, axes
