"""Models whose rounding is hard to foresee: chosen numbers, norms, rows that most tokens read, half precision.

Each row is a module's parts and what it computes of `x` and `y`. Sizes are small, but for sums that have to be long.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import ssdsl
from ssdsl.model.load.model import Model

B, S, H, C, ROWS = 8, 6, 16, 5, 8
Parts = dict[str, nn.Module]
Compute = Callable[["Net", Tensor, Tensor], Tensor]
Axes = dict[str, tuple[str, ...]]
VECTORS: Axes = {"x": ("batch", "seq", "feature"), "y": ("batch", "seq")}
TOKENS: Axes = {"x": ("batch", "seq"), "y": ("batch", "seq")}
IMAGES: Axes = {"x": ("batch", "channel", "height", "width"), "y": ("batch",)}


class Net(nn.Module):
    """Parts by name, and a function of them and the inputs."""

    def __init__(self, parts: Parts, compute: Compute, autocast: torch.dtype | None) -> None:
        super().__init__()
        self.parts, self.compute, self.autocast = nn.ModuleDict(parts), compute, autocast

    def __getattr__(self, name: str) -> object:
        parts = self.__dict__.get("_modules", {}).get("parts")
        return parts[name] if parts is not None and name in parts else super().__getattr__(name)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        casting = torch.autocast(x.device.type, self.autocast) if self.autocast is not None else nullcontext()
        with casting:
            return self.compute(self, x, y).float() if self.autocast is not None else self.compute(self, x, y)


# -- inputs ------------------------------------------------------------------------------------------------------------


def vectors(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.randn(B, S, H, dtype=dtype), torch.randint(C, (B, S))


def tokens(_: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.randint(ROWS, (B, S)), torch.randint(C, (B, S))


def padded(_: torch.dtype) -> tuple[Tensor, Tensor]:
    """Of 16,384 tokens 13,600 are of one kind."""
    return (torch.rand(B, 2048) ** 8 * ROWS).long(), torch.randint(C, (B, 2048))


def images(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.randn(B, 3, 8, 8, dtype=dtype), torch.randint(C, (B,))


def long(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.randn(B, 512, H, dtype=dtype), torch.randint(C, (B, 512))


AXES = {vectors: VECTORS, tokens: TOKENS, padded: TOKENS, images: IMAGES, long: VECTORS}


# -- what is computed --------------------------------------------------------------------------------------------------


def linear() -> Parts:
    return {"a": nn.Linear(H, H), "b": nn.Linear(H, C)}


def classes(scores: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, -2), y.flatten())


def scores(m: Net, x: Tensor) -> Tensor:
    return m.b(m.a(x).tanh())


def beside(term: Callable[[Tensor], Tensor]) -> Compute:
    """Cross entropy, and a little of a term of all scores."""

    def compute(m: Net, x: Tensor, y: Tensor) -> Tensor:
        found = scores(m, x)
        return classes(found, y) + 0.1 * term(found)

    return compute


def inside(change: Callable[[Tensor], Tensor]) -> Compute:
    """Cross entropy of scores whose hidden values are changed."""
    return lambda m, x, y: classes(m.b(change(m.a(x))), y)


def book(width: int = H) -> Parts:
    return {"book": nn.Embedding(ROWS, width), "b": nn.Linear(width, C)}


def of_tokens(m: Net, x: Tensor, y: Tensor) -> Tensor:
    return classes(m.b(m.book(x)), y)


def squares_of_tokens(m: Net, x: Tensor, y: Tensor) -> Tensor:
    return (m.book(x) - 0.1 * y[..., None]).square().mean()


def quantized(m: Net, x: Tensor, y: Tensor) -> Tensor:
    """A codebook of which most vectors take one row (van den Oord et al. 2017)."""
    h = 0.1 * m.a(x)
    with torch.no_grad():
        chosen = (h.unsqueeze(-2) - m.book.weight).square().sum(-1).argmin(-1)
    code = m.book(chosen)
    straight = h + (code - h).detach()
    return classes(m.b(straight), y) + (code - h.detach()).square().mean() + 0.25 * (h - code.detach()).square().mean()


def indexed(m: Net, x: Tensor, y: Tensor) -> Tensor:
    return classes(m.b(m.book.weight[x]), y)


def selected(m: Net, x: Tensor, y: Tensor) -> Tensor:
    return classes(m.b(m.book.weight.index_select(0, x.flatten()).view(*x.shape, H)), y)


def pooled(m: Net, x: Tensor, y: Tensor) -> Tensor:
    """Sums of tokens by their class, as nodes of a graph are pooled: most are of one."""
    h = m.book(x)
    sums = h.new_zeros(len(x), C, H).scatter_add(1, (y // 3)[..., None].expand(-1, -1, H), h)
    return m.b(sums / x.shape[1]).square().mean()


def tied(m: Net, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy((m.book(x) @ m.book.weight.T).flatten(0, 1), y.flatten())


def heads() -> Parts:
    return {"q": nn.Linear(H, H), "k": nn.Linear(H, H), "v": nn.Linear(H, H), "b": nn.Linear(H, C)}


def attended(m: Net, x: Tensor) -> Tensor:
    q, k, v = (p(x).unflatten(-1, (4, 4)).transpose(1, 2) for p in (m.q, m.k, m.v))
    return m.b(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def attention(m: Net, x: Tensor, y: Tensor) -> Tensor:
    return classes(attended(m, x), y)


def attention_and_maximum(m: Net, x: Tensor, y: Tensor) -> Tensor:
    found = attended(m, x)
    return classes(found, y) + 0.01 * found.max()


def convolutions(norm: Callable[[], nn.Module], pool: nn.Module) -> Parts:
    return {"c": nn.Conv2d(3, H, 3, padding=1), "n": norm(), "pool": pool, "b": nn.Linear(H, C)}


def of_images(m: Net, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(m.b(m.pool(m.n(m.c(x)).relu()).flatten(2).mean(2)), y)


def normed(m: Net, x: Tensor, y: Tensor) -> Tensor:
    return classes(m.b(m.n(m.a(x))), y)


def block() -> Parts:
    parts: Parts = {"n": nn.LayerNorm(H), "up": nn.Linear(H, 4 * H), "down": nn.Linear(4 * H, H)}
    return {**heads(), **parts, "book": nn.Embedding(ROWS, H)}


def gpt(m: Net, x: Tensor, y: Tensor) -> Tensor:
    h = m.book(x)
    return classes(attended(m, h + m.down(F.gelu(m.up(m.n(h))))), y)


def experts(m: Net, x: Tensor, y: Tensor) -> Tensor:
    """Each token goes through the best two of four experts."""
    chances, chosen = m.gate(x).softmax(-1).topk(2)
    weights = torch.zeros(*x.shape[:-1], 4, dtype=chances.dtype).scatter(-1, chosen, chances)
    made = torch.stack([getattr(m, f"e{n}")(x) for n in range(4)], -1)
    return classes(m.b((made * weights.unsqueeze(-2)).sum(-1)), y)


def hardest(m: Net, x: Tensor, y: Tensor) -> Tensor:
    """The nearest of other samples (Hermans et al. 2017)."""
    h = m.a(x).mean(1)
    distances = (h[:, None] - h[None]).square().sum(-1) + 1e3 * torch.eye(len(h), dtype=h.dtype)
    return (1 - distances.amin(1)).relu().mean() + m.b(h).square().mean()


def faint(m: Net, x: Tensor, y: Tensor) -> Tensor:
    return classes(m.b(m.a(x).tanh() + 1e-6 * m.c(x).tanh()), y)


def noisy(m: Net, x: Tensor, y: Tensor) -> Tensor:
    h = F.dropout(m.a(x).tanh(), 0.2, training=True)
    return classes(m.b(h + 0.1 * torch.randn_like(h)), y)


def scaled(m: Net, x: Tensor, y: Tensor) -> Tensor:
    """Quantization to whole numbers by the largest value, with a straight-through gradient."""
    h = m.a(x)
    scale = h.abs().max() / 127
    return classes(m.b(h + ((h / scale).round() * scale - h).detach() + 0.01 * scale), y)


# -- the table ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """A model: its parts, what it computes, of which inputs, its type and that of its autocast region."""

    parts: Callable[[], Parts]
    compute: Compute
    inputs: Callable[[torch.dtype], tuple[Tensor, Tensor]] = vectors
    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None

    def build(self) -> Model:
        """The model, the same at every call."""
        torch.manual_seed(0)
        net = Net(self.parts(), self.compute, self.autocast).to(self.dtype)
        x, y = self.inputs(self.dtype)
        return ssdsl.model_of(net, {"x": x, "y": y}, AXES[self.inputs])


def orthogonal(**options: str) -> Callable[[], Parts]:
    return lambda: {
        "a": parametrizations.orthogonal(nn.Linear(H, H), **options),
        "b": parametrizations.orthogonal(nn.Linear(H, C), **options),
    }


def weighted() -> Parts:
    return {"a": parametrizations.weight_norm(nn.Linear(H, H)), "b": nn.Linear(H, C)}


def with_norm(norm: Callable[[], nn.Module]) -> Callable[[], Parts]:
    return lambda: {**linear(), "n": norm()}


def codebook() -> Parts:
    return {"a": nn.Linear(H, H), **book()}


def mixture() -> Parts:
    return {"gate": nn.Linear(H, 4), "b": nn.Linear(H, C), **{f"e{n}": nn.Linear(H, H) for n in range(4)}}


def three() -> Parts:
    return {**linear(), "c": nn.Linear(H, H)}


def plain(m: Net, x: Tensor, y: Tensor) -> Tensor:
    return classes(scores(m, x), y)


HALF, DOUBLE = torch.bfloat16, torch.float64
MODELS: dict[str, Row] = {
    "max": Row(linear, beside(lambda s: s.max())),
    "max, float64": Row(linear, beside(lambda s: s.max()), dtype=DOUBLE),
    "min": Row(linear, beside(lambda s: s.min())),
    "max of sizes": Row(linear, beside(lambda s: s.abs().max())),
    "amax": Row(linear, beside(lambda s: s.amax((0, 1, 2)))),
    "amax of each": Row(linear, beside(lambda s: s.amax(-1).mean())),
    "max of each": Row(linear, beside(lambda s: s.max(-1).values.mean())),
    "median": Row(linear, beside(lambda s: s.median())),
    "median of each": Row(linear, beside(lambda s: s.median(-1).values.mean())),
    "mode of each": Row(linear, beside(lambda s: s.mode(-1).values.mean())),
    "kthvalue": Row(linear, beside(lambda s: s.kthvalue(3, -1).values.mean())),
    "topk": Row(linear, beside(lambda s: s.flatten().topk(7).values.mean())),
    "sort": Row(linear, beside(lambda s: (s.sort(-1).values * torch.arange(C, dtype=s.dtype)).mean())),
    "range": Row(linear, beside(lambda s: s.max() - s.min())),
    "cummax": Row(linear, beside(lambda s: s.cummax(1).values.mean())),
    "norm of infinity": Row(linear, beside(lambda s: torch.linalg.vector_norm(s, float("inf")))),
    "norm of 1": Row(linear, beside(lambda s: 0.1 * torch.linalg.vector_norm(s, 1))),
    "norm of 2": Row(linear, beside(lambda s: s.norm())),
    "norm of 3": Row(linear, beside(lambda s: torch.linalg.vector_norm(s, 3, dim=-1).mean())),
    "softmax of all": Row(linear, beside(lambda s: s.logsumexp((0, 1, 2)))),
    "scaled to the largest": Row(linear, inside(lambda h: h / h.abs().max())),
    "unit length": Row(linear, inside(lambda h: F.normalize(h, dim=-1))),
    "quantized to whole": Row(linear, scaled),
    "hardest of the batch": Row(linear, hardest),
    "maximum pool": Row(lambda: convolutions(nn.Identity, nn.MaxPool2d(2)), of_images, images),
    "adaptive pool": Row(lambda: convolutions(nn.Identity, nn.AdaptiveMaxPool2d(1)), of_images, images),
    "batch norm": Row(lambda: convolutions(lambda: nn.BatchNorm2d(H), nn.AvgPool2d(2)), of_images, images),
    "group norm": Row(lambda: convolutions(lambda: nn.GroupNorm(4, H), nn.AvgPool2d(2)), of_images, images),
    "layer norm, long": Row(with_norm(lambda: nn.LayerNorm(H)), normed, long),
    "rms norm": Row(with_norm(lambda: nn.RMSNorm(H)), normed),
    "weight norm": Row(weighted, plain),
    "pads": Row(book, of_tokens, padded),
    "pads, float64": Row(book, of_tokens, padded, DOUBLE),
    "pads, squares": Row(book, squares_of_tokens, padded),
    "pads, squares, float64": Row(book, squares_of_tokens, padded, DOUBLE),
    "pads by index": Row(book, indexed, padded),
    "pads by index_select": Row(book, selected, padded),
    "pads, tied": Row(book, tied, padded),
    "pads, pooled": Row(book, pooled, padded),
    "codebook": Row(codebook, quantized, long),
    "codebook, float64": Row(codebook, quantized, long, DOUBLE),
    "key bias and max": Row(heads, attention_and_maximum),
    "attention, long": Row(heads, attention, long),
    "faint layer": Row(three, faint),
    "experts": Row(mixture, experts),
    "noise": Row(linear, noisy),
    "orthogonal": Row(orthogonal(), plain),
    "orthogonal, float64": Row(orthogonal(), plain, dtype=DOUBLE),
    "orthogonal by exponential": Row(orthogonal(orthogonal_map="matrix_exp"), plain),
    "orthogonal by exponential, float64": Row(orthogonal(orthogonal_map="matrix_exp"), plain, dtype=DOUBLE),
    "autocast": Row(linear, plain, autocast=HALF),
    "autocast, max": Row(linear, beside(lambda s: s.abs().max()), autocast=HALF),
    "autocast, noise": Row(linear, noisy, autocast=HALF),
    "autocast, pads": Row(book, of_tokens, padded, autocast=HALF),
    "autocast, codebook": Row(codebook, quantized, long, autocast=HALF),
    "autocast, key bias": Row(heads, attention, autocast=HALF),
    "autocast, transformer": Row(block, gpt, tokens, autocast=HALF),
    "autocast, experts": Row(mixture, experts, autocast=HALF),
    "autocast float16": Row(linear, plain, autocast=torch.float16),
    "bfloat16": Row(linear, plain, dtype=HALF),
    "bfloat16, noise": Row(linear, noisy, dtype=HALF),
    "bfloat16, transformer": Row(block, gpt, tokens, HALF),
    "bfloat16, batch norm": Row(
        lambda: convolutions(lambda: nn.BatchNorm2d(H), nn.MaxPool2d(2)), of_images, images, HALF
    ),
    "bfloat16, pads": Row(book, of_tokens, padded, HALF),
    "bfloat16, experts": Row(mixture, experts, dtype=HALF),
}
