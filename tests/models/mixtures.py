"""Mixtures for users' routers: experts without tokens, tokens that are dropped, two mixtures one behind the other."""

import torch
from torch import nn

Given = tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]
EXPERTS, WIDTH = 4, 8


class Mixture(nn.Module):
    """Feed-forwards of which a router chooses some for each token. `wanted` are the only ones that it knows. With a
    `capacity` only so many tokens of the whole batch find room at an expert; the others are dropped."""

    def __init__(self, chosen: int = 1, wanted: tuple[int, ...] = (), capacity: int = 0) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 16))
        self.gate = nn.Parameter(torch.randn(EXPERTS, WIDTH, 16))
        self.down = nn.Parameter(torch.randn(EXPERTS, 16, WIDTH))
        self.chosen, self.capacity = chosen, capacity
        barred = [e for e in range(EXPERTS) if wanted and e not in wanted]
        self.register_buffer(
            "barred", torch.zeros(EXPERTS).index_fill(0, torch.tensor(barred, dtype=torch.long), -50.0)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        share, expert = (self.router(tokens) + self.barred).softmax(-1).topk(self.chosen)
        if self.capacity:
            expert = self.with_room(expert)
        rows = tokens.unsqueeze(1).expand(-1, self.chosen, -1).reshape(-1, WIDTH)
        ids = expert.reshape(-1)
        up, gate = (torch.ops.ssdsl.routed_mm(rows, w, ids) for w in (self.up, self.gate))
        y = torch.ops.ssdsl.routed_mm(up * gate.sigmoid(), self.down, ids) * share.reshape(-1, 1)
        return y.view(-1, self.chosen, WIDTH).sum(1).view_as(x)

    def with_room(self, expert: torch.Tensor) -> torch.Tensor:
        """The number behind the last expert for tokens that find no room; they stand in the order of the batch."""
        taken = torch.nn.functional.one_hot(expert[:, 0], EXPERTS).cumsum(0)
        place = taken.gather(1, expert) - 1
        return expert.where(place < self.capacity, EXPERTS)


class Net(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.stem, self.mixture, self.head = nn.Linear(WIDTH, WIDTH), Mixture(**options), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head(x + self.mixture(x)).square().mean()


def _given(batch: int = 8, seq: int = 4, **options: object) -> Given:
    torch.manual_seed(0)
    return Net(**options), {"x": torch.randn(batch, seq, WIDTH)}, {"x": ("batch", "seq", "width")}


def one() -> Given:
    return _given()


def two() -> Given:
    return _given(chosen=2)


def idle_expert() -> Given:
    """One expert gets no token at all."""
    return _given(wanted=(0, 1, 3))


def idle_device() -> Given:
    """All tokens go to the experts of the first of two devices, or of four."""
    return _given(wanted=(0,))


def dropped() -> Given:
    """Each expert has room for five tokens of the batch's 32."""
    return _given(capacity=5)


def many() -> Given:
    """Two megabytes of rows, whose time to travel is not latency alone."""
    return _given(256, 256)
