"""Models of a few operators, each for one behaviour of the lowering."""

import torch
import torch.nn.functional as F
from torch import nn

Given = tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]


class Mlp(nn.Module):
    """A column- and a row-parallel linear, with biases."""

    def __init__(self, width: int = 8, ffn: int = 16) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, ffn), nn.Linear(ffn, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu()).square().mean()


class Block(nn.Module):
    """Normalisation and feed-forward of a transformer, with the residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.down(F.gelu(self.up(self.norm(x))))).square().mean()


class Whole(nn.Module):
    """An operator that needs the whole batch, between two that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).cummax(0)[0]).square().mean()


class Deep(nn.Module):
    """Layers in a row."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


class Language(nn.Module):
    """A table of words, positions, and a head, tied to the table or not."""

    def __init__(self, tied: bool, positions: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 8)
        self.positions = nn.Embedding(6, 8) if positions else None
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 12, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(6))
        return F.cross_entropy(self.head(self.middle(x)).flatten(0, 1), labels.flatten())


class Normed(nn.Module):
    """Batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.fc(x)).square().mean()


class Masked(nn.Module):
    """What depends on inputs only, and what depends on nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        ramp = torch.arange(8) / 8
        weight = keep.float() / keep.sum()
        return ((self.fc(x) * ramp).square().mean(1) * weight).sum()


class TwoTerms(nn.Module):
    """A loss of two terms that two stages compute."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x).square().mean() + self.b(x).square().mean()


class Contrast(nn.Module):
    """Every example against every other: batch x batch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, z: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.a(x) @ self.b(z).t(), labels)


class Penalty(nn.Module):
    """A mean, a number, and two terms that no example has part in: a penalty, and a weight itself."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.log_variance = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        error = (-self.log_variance).exp() * self.fc(x).square().mean() + self.log_variance
        return 1 + error + self.fc.weight.square().sum()


class OverBatch(nn.Module):
    """Attention over the batch: a value is read in parts and whole."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        return ((h @ h.t()).softmax(-1) @ h).square().mean()


class Teacher(nn.Module):
    """One linear under no_grad, one frozen, one trained."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher, self.frozen = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = self.teacher(x)
        return (self.student(self.frozen(x)) - target).square().mean()


class Residual(nn.Module):
    """Feed-forwards whose residuals the parent adds."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for mlp in self.mlp:
            x = x + mlp(x)
        return x.square().mean()


def _of_rows(model: nn.Module, rows: int = 8) -> Given:
    return model, {"x": torch.zeros(rows, 8)}, {"x": ("batch", "feature")}


def _of_words(model: nn.Module) -> Given:
    tokens = torch.zeros(4, 6, dtype=torch.long)
    return model, {"tokens": tokens, "labels": tokens}, {"tokens": ("batch", "seq"), "labels": ("batch", "seq")}


def mlp() -> Given:
    return _of_rows(Mlp())


def block() -> Given:
    return Block(), {"x": torch.zeros(4, 6, 8)}, {"x": ("batch", "seq", "hidden")}


def two_layers() -> Given:
    return _of_rows(Deep(2))


def twelve_rows() -> Given:
    return _of_rows(Deep(2), 12)


def three_layers() -> Given:
    return _of_rows(Deep(3))


def language() -> Given:
    return _of_words(Language(tied=False, positions=False))


def tied() -> Given:
    return _of_words(Language(tied=True, positions=False))


def positions() -> Given:
    return _of_words(Language(tied=False, positions=True))


def normed() -> Given:
    return _of_rows(Normed())


def masked() -> Given:
    inputs = {"x": torch.zeros(8, 8), "keep": torch.ones(8, dtype=torch.long)}
    return Masked(), inputs, {"x": ("batch", "feature"), "keep": ("batch",)}


def two_terms() -> Given:
    return _of_rows(TwoTerms())


def penalty() -> Given:
    return _of_rows(Penalty())


def contrast() -> Given:
    inputs = {"x": torch.zeros(8, 8), "z": torch.zeros(8, 8), "labels": torch.arange(8)}
    return Contrast(), inputs, {"x": ("batch", "feature"), "z": ("batch", "feature"), "labels": ("batch",)}


def over_batch() -> Given:
    return _of_rows(OverBatch())


def teacher() -> Given:
    return _of_rows(Teacher())


def residual() -> Given:
    return _of_rows(Residual())


class Skip(nn.Module):
    """The first layer's output is read by the last one too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = self.layers
        h = first(x)
        return (third(torch.tanh(second(h))) + h).square().mean()


def skip() -> Given:
    return _of_rows(Skip(), 12)


def computed_whole() -> Given:
    return _of_rows(Whole())


class Experts(nn.Module):
    """A feed-forward for each of four experts; the router sends each token to one, times its probability."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.up, self.down = nn.Parameter(torch.randn(4, 8, 16)), nn.Parameter(torch.randn(4, 16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        share, expert = self.router(tokens).softmax(-1).max(-1)
        inner = torch.ops.ssdsl.routed_mm(tokens, self.up, expert).relu()
        return (torch.ops.ssdsl.routed_mm(inner, self.down, expert) * share.unsqueeze(-1)).square().mean()


def experts() -> Given:
    torch.manual_seed(0)
    return Experts(), {"x": torch.randn(4, 4, 8)}, {"x": ("batch", "seq", "width")}


def many_experts() -> Given:
    """Two megabytes of rows: sending them takes longer than beginning to send."""
    torch.manual_seed(0)
    return Experts(), {"x": torch.zeros(256, 256, 8)}, {"x": ("batch", "seq", "width")}


class TwoRouters(nn.Module):
    """Two mixtures see the same tokens, and send them elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.routers = nn.Linear(8, 8)
        self.weights = nn.ParameterList(torch.randn(4, 8, 8) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        y = torch.zeros_like(tokens)
        for scores, weights in zip(self.routers(tokens).split(4, -1), self.weights, strict=True):
            share, expert = scores.softmax(-1).max(-1)
            y = y + torch.ops.ssdsl.routed_mm(tokens, weights, expert) * share.unsqueeze(-1)
        return y.square().mean()


def two_routers() -> Given:
    torch.manual_seed(0)
    return TwoRouters(), {"x": torch.randn(4, 4, 8)}, {"x": ("batch", "seq", "width")}


class Rows(nn.Module):
    """Two convolutions and a pooling that overlaps, along rows that do not divide."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(2, 4, 3, padding=1), nn.Conv1d(4, 4, 5, padding=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = nn.functional.max_pool1d(self.first(x).relu(), 3, 2, 1)
        return self.second(h).square().mean()


def rows() -> Given:
    torch.manual_seed(0)
    return Rows(), {"x": torch.randn(4, 2, 14)}, {"x": ("batch", "colour", "length")}


class Borders(nn.Module):
    """Two convolutions that see earlier rows only: zeros are in front of one, and of the other its first row."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(2, 4, 3), nn.Conv1d(4, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(F.pad(x, (2, 0))).relu()
        return self.second(torch.cat([h[..., :1].expand(-1, -1, 2), h], 2))[..., 1:].square().mean()


def borders() -> Given:
    torch.manual_seed(0)
    return Borders(), {"x": torch.randn(4, 2, 9)}, {"x": ("batch", "colour", "length")}


class Beside(nn.Module):
    """A second branch that does not need the first one's sum."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.gate = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squares = self.down(self.up(x).relu()).square()
        return (squares * self.gate(x).sigmoid()).mean()


def beside() -> Given:
    torch.manual_seed(0)
    return Beside(), {"x": torch.randn(8, 8)}, {"x": ("batch", "width")}


class Rolled(nn.Module):
    """Rows that are shifted around."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(2, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.enter(x).roll(1, 2).square().mean()


def rolled() -> Given:
    torch.manual_seed(0)
    return Rolled(), {"x": torch.randn(4, 2, 8)}, {"x": ("batch", "colour", "length")}


class Attention(nn.Module):
    """One head that sees the words before a word."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keys = self.keys(x)
        return F.scaled_dot_product_attention(x, keys, x, is_causal=True).mean()


def attention() -> Given:
    torch.manual_seed(0)
    return Attention(), {"x": torch.randn(2, 7, 4)}, {"x": ("batch", "seq", "width")}
