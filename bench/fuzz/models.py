"""Random models: a list of layers between a front and a head, and the text of a file that builds it.

They compute in double precision, so that a difference is a mistake and not rounding.
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from bench.fuzz import layers, losses
from ssdsl.runtime.bits import Generator

Layer = tuple[str, tuple[object, ...]]  # a class of layers.py and its arguments

FRONTS = ("embedding", "linear")
HEADS = ("classes", "tied", "squares", "pooled")
VOCABULARY = (  # functions of losses.py; a name that begins with `tied` has the weight of the embedding
    *("smoothed", "weighted", "of_each", "of_chances", "likelihood"),
    *("by_hand", "shifted", "entropy", "distilled", "accurate"),
)
DROPS = ("attention", "path", "channels", "noise", "slopes", "elements", "elements")
MOVES = ("flip", "roll", "roll batch", "cat", "stack", "shift", "mean", "turn")
ALL = ("cumsum", "cumprod", "logcumsumexp", "topk", "sort", "max", "var", "softmax", "logsumexp")
IMAGES = (
    "plain",
    "norm",
    "norm",
    "pool",
    "drop",
    "groups",
    "strided",
    "dilated",
    "even",
    "large",
    "transposed",
    "maximum",
)
SEQUENCES = ("causal", "causal", "causal", "masked", "near", "open", "biased", "dropped")
UNLISTED = ("batch", "hidden", "kthvalue", "trace", "inverse")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A model: its sizes, front, layers and head, what the root itself computes behind each layer, and what becomes of
    the loss. With `meta` its weights are made by recipes; `generator` draws."""

    batch: int
    seq: int
    hidden: int
    vocab: int
    front: str
    layers: tuple[Layer, ...]
    head: str
    batches: int
    tail: str = "nothing"
    root: str = "nothing"
    meta: bool = False
    generator: Generator = "hash"

    @property
    def text(self) -> str:
        """The model's file."""
        used = dict.fromkeys(name for name, _ in self.layers)
        classes = "\n\n".join(inspect.getsource(getattr(layers, name)) for name in used)
        made = ", ".join(f"{name}({', '.join(map(repr, given))})" for name, given in self.layers)
        first = "nn.Embedding(V, H)" if self.front == "embedding" else "nn.Linear(V, H)"
        tied = "\n        self.head.weight = self.front.weight" if self.is_tied else ""
        if self.loss in VOCABULARY:
            classes = "\n\n".join(filter(None, (classes, inspect.getsource(getattr(losses, self.loss)))))
        return TEXT.format(
            classes=classes + ("\n" if classes else ""),
            sizes=f"B, S, H, V = {self.batch}, {self.seq}, {self.hidden}, {self.vocab}",
            first=first,
            made=made,
            tied=tied,
            loss=LOSSES[self.loss],
            tail=TAILS[self.tail],
            root=ROOTS[self.root],
            width="H" if self.head == "squares" else "V",
            x="torch.randint(V, (B, S), generator=g)"
            if self.front == "embedding"
            else "torch.randn(B, S, V, generator=g, dtype=torch.float64)",
            y=LABELS[self.loss],
            batches=self.batches,
            x_axes='("batch", "seq")' if self.front == "embedding" else '("batch", "seq", "feature")',
            y_axes=Y_AXES[self.loss],
        )

    @property
    def is_tied(self) -> bool:
        return self.head.startswith("tied")

    @property
    def loss(self) -> str:
        return self.head.removeprefix("tied ")

    def smaller(self) -> Iterator["Recipe"]:
        """Recipes that are one step simpler."""
        for n in range(len(self.layers)):
            yield replace(self, layers=self.layers[:n] + self.layers[n + 1 :])
        for name, plain in (("tail", "nothing"), ("root", "nothing"), ("meta", False), ("generator", "hash")):
            if getattr(self, name) != plain:
                yield replace(self, **{name: plain})
        if self.head != "squares":
            yield replace(self, head="squares")
        if self.is_tied and self.head != "tied":
            yield replace(self, head=self.loss)
        if self.front != "linear" and not self.is_tied:
            yield replace(self, front="linear")
        if self.batches > 1:
            yield replace(self, batches=1)
        for name in ("batch", "seq", "vocab"):
            for size in (2, 4, 6, 8):
                if size < getattr(self, name) and not (
                    name == "seq" and any(n in ("Position", "Grouped") for n, _ in self.layers)
                ):
                    yield replace(self, **{name: size})


TEXT = """import torch
import torch.nn.functional as F
from torch import Tensor, nn

{sizes}


{classes}
class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = {first}
        self.h = nn.ModuleList([{made}])
        self.head = nn.Linear(H, {width}, bias=False){tied}

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, terms = self.front(x), []
        for layer in self.h:
            x = layer(x)
            if isinstance(x, tuple):
                x, term = x
                terms.append(term){root}
        loss = {loss}
        for term in terms:
            loss = loss + term{tail}
        return loss


def net():
    g = torch.Generator().manual_seed(0)
    batches = [{{"x": {x}, "y": {y}}} for _ in range({batches})]
    return Net().double(), batches, {{"x": {x_axes}, "y": {y_axes}}}
"""

LOSSES = {
    "classes": "F.cross_entropy(self.head(x).flatten(0, 1), y.flatten())",
    "tied": "F.cross_entropy(self.head(x).flatten(0, 1), y.flatten())",
    "squares": "(self.head(x) - y).square().mean()",
    "pooled": "F.cross_entropy(self.head(x.mean(1)), y)",
    **{name: f"{name}(self.head(x), y)" for name in VOCABULARY},
}
TAILS = {
    name: f"\n        {line}"
    for name, line in {
        "penalty": "loss = loss + 0.01 * self.head.weight.square().sum()",
        "penalties": "loss = loss + 0.01 * sum(w.square().sum() for w in self.parameters())",
        "weighted": "loss = (-self.head.weight.mean()).exp() * loss + self.head.weight.mean()",
        "number": "loss = 1 - 0.5 * loss",
        "stacked": "loss = torch.stack([loss, x.abs().mean()]).mean()",
        "exponential": "loss = (0.1 * loss).exp()",
        "ratio": "loss = loss / (1 + x.square().mean())",
        "picked": "rows = torch.arange(B, device=x.device)\n        loss = loss + x[rows, rows % S].square().mean()",
        "contrast": "loss = loss + F.cross_entropy(x.mean(1) @ x.mean(1).t(), torch.arange(B, device=x.device))",
    }.items()
} | {"nothing": ""}
ROOTS = {
    name: f"\n            {line}"
    for name, line in {
        "gelu": "x = F.gelu(x)",
        "half": "x = 0.5 * x + x.tanh()",
        "drop": "x = F.dropout(x, 0.2)",
        "norm": "x = F.layer_norm(x, (H,))",
        "whole": "x = x - 0.1 * x.amax(0, keepdim=True)",
    }.items()
} | {"nothing": ""}
IGNORED = "torch.where(torch.rand(B, S, generator=g) < 0.3, -100, torch.randint(V, (B, S), generator=g))"
LABELS = {
    "classes": IGNORED,
    "tied": IGNORED,
    "squares": "torch.randn(B, S, H, generator=g, dtype=torch.float64)",
    "pooled": "torch.randint(V, (B,), generator=g)",
    **dict.fromkeys(VOCABULARY, IGNORED),
}
Y_AXES = {
    "classes": '("batch", "seq")',
    "tied": '("batch", "seq")',
    "squares": '("batch", "seq", "target")',
    "pooled": '("batch",)',
    **dict.fromkeys(VOCABULARY, '("batch", "seq")'),
}


def draw_recipe(draw: Random) -> Recipe:
    """A model of one to five layers, of any kinds or mostly of those of a theme."""
    theme = draw.choice(["", "", *THEMES])
    hidden = draw.choice([4, 6, 8, 12])
    seq = draw.choice([2, 3, 4, 6] if theme in ("", "experts") else [4, 6, 8, 9, 13])
    head = draw.choice((*HEADS, "vocabulary", "vocabulary"))
    if head == "vocabulary":
        head = draw.choice(("", "tied ")) + draw.choice(VOCABULARY)
    front = "embedding" if head.startswith("tied") else draw.choice(FRONTS)
    names = [draw.choice(THEMES.get(theme, NAMES)) for _ in range(draw.randint(1, 3 if theme else 5))]
    chosen = tuple(_layer(draw, name, hidden, seq) for name in names)
    batch = draw.choice([2, 4, 4, 6, 5] if theme else [4, 6, 8, 8, 12, 5, 9])
    vocab = draw.choice([6, 8, 10, 12])
    tail = draw.choice([*TAILS, *["nothing"] * len(TAILS)])
    root = draw.choice([*ROOTS, *["nothing"] * len(ROOTS)])
    meta, generator = draw.random() < 0.15, draw.choice([*["hash"] * 7, "philox"])
    return Recipe(batch, seq, hidden, vocab, front, chosen, head, draw.choice([1, 1, 2]), tail, root, meta, generator)


def _layer(draw: Random, name: str, hidden: int, seq: int) -> Layer:
    wide = draw.choice([hidden, 2 * hidden, 4 * hidden])
    match name:
        case "Mlp":
            return name, (hidden, wide, draw.random() < 0.6, draw.choice(["gelu", "relu", "silu"]))
        case "Plain":
            return name, (hidden, draw.random() < 0.6)
        case "BareMlp" | "Conv":
            return name, (hidden, wide)
        case "Attention":
            return name, (hidden, 2)
        case "Grouped":
            heads = draw.choice([n for n in (2, 4, 6) if hidden % n == 0])
            groups = draw.choice([n for n in (1, 2, 3) if heads % n == 0])
            return name, (hidden, heads, groups, seq, draw.choice(SEQUENCES))
        case "Drops":
            return name, (hidden, draw.choice(DROPS))
        case "Image":
            return name, (draw.choice([2, 4]), draw.choice(IMAGES))
        case "Recurrent":
            return name, (hidden, draw.choice(["GRU", "LSTM"]))
        case "Position":
            return name, (seq, hidden)
        case "Moves":
            return name, (draw.choice(MOVES),)
        case "All":
            return name, (draw.choice(ALL), draw.randint(0, 1))
        case "Unlisted":
            return name, (draw.choice(UNLISTED),)
        case "Detached":
            return name, (hidden, draw.random() < 0.5)
        case "Gates":
            return name, (hidden, draw.choice([2, 4]))
        case "Routed":
            return name, (hidden, draw.choice([2, 4, 5, 6]), draw.choice([1, 2]))
        case "Switch":
            return name, (hidden, draw.choice([2, 3, 4, 6]), draw.choice([1, 2, 3]))
        case _:
            return name, (hidden,)


OFTEN = ("Mlp", "Mlp", "Mlp", "BareMlp", "Plain", "Attention", "Grouped", "Drops", "Drops", "All", "Unlisted")
NAMES = (*OFTEN, *(n for n, c in vars(layers).items() if inspect.isclass(c) and c.__module__ == layers.__name__))
THEMES = {
    "sequence": ("Grouped", "Grouped", "Grouped", "Attention", "Mlp", "Position", "Norm"),
    "space": ("Image", "Image", "Image", "Conv", "Mlp"),
    "experts": ("Routed", "Routed", "Switch", "Switch", "Gates", "Mlp", "Grouped"),
}
