"""Random models: a list of layers between a front and a head, and the text of a file that builds it.

They compute in double precision, so that a difference is a mistake and not rounding, unless they are to be autocast.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass

from bench.fuzz import losses
from bench.fuzz.fronts import FRONTS, MERGED, PLAINER, Front, divisor
from bench.fuzz.layers import CLASSES, ROW_OF
from ssdsl.record import replace
from ssdsl.runtime.random.counter_rng import Generator

Layer = tuple[str, tuple[object, ...]]  # a class of a layer and its arguments

HEADS = ("classes", "tied", "squares", "pooled")
PLAINEST: dict[str, object] = {"tail": "nothing", "root": "nothing", "meta": False, "generator": "hash"}
VOCABULARY = (  # functions of losses.py; a name that begins with `tied` has the weight of the embedding
    *("smoothed", "weighted", "of_each", "of_chances", "likelihood"),
    *("by_hand", "shifted", "entropy", "distilled", "accurate"),
)
SIZE = re.compile(r"\b[SC]\b")  # the length of the example, in the text of a layer
SIZED = ("seq", "grid", "size")  # arguments of layers that a smaller sequence would not fit


@dataclass(frozen=True, slots=True)
class Recipe:
    """A model: its sizes, front, layers and head, what the root itself computes behind each layer, and what becomes of
    the loss. With `meta` its weights are made by recipes; `generator` draws. With `returns_all` the forward returns a
    second loss and other results as well."""

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
    precision: str = "float64"
    returns_all: bool = False

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows of the report that it counts in: those of its layers, of its axes and of its loss."""
        found = [ROW_OF[name] for name, _ in self.layers]
        if self.front in MERGED:
            found.append("axes of two dimensions")
        if self.loss in VOCABULARY or self.tail != "nothing":
            found.append("losses and random")
        if self.front in ("sparse", "padded"):
            found.append("computed from inputs")
        if self.tail in ("largest", "middle"):
            found.append("one number of everything")
        return tuple(dict.fromkeys(found))

    @property
    def reads(self) -> bool:
        """Whether a layer reads tokens."""
        return any(hasattr(CLASSES[name], "reads") for name, _ in self.layers)

    @property
    def text(self) -> str:
        """The model's file."""
        front = FRONTS[self.front]
        texts = [inspect.getsource(CLASSES[name]) for name in dict.fromkeys(name for name, _ in self.layers)]
        if self.loss in VOCABULARY:
            texts.append(inspect.getsource(getattr(losses, self.loss)))
        made = ", ".join(f"{name}({', '.join(map(repr, given))})" for name, given in self.layers)
        inputs = self._inputs(front)
        return TEXT.format(
            classes="\n\n".join(texts) + ("\n" if texts else ""),
            sizes=f"B, S, H, V = {self.batch}, {self.seq}, {self.hidden}, {self.vocab}\n"
            f"A, C = {divisor(self.batch)}, {divisor(self.seq)}",
            first=front.make,
            made=made,
            tied="\n        self.head.weight = self.front.weight" if self.is_tied else "",
            names=", ".join(f"{name}: Tensor" for name in inputs),
            start="\n        ".join(self._start(front)),
            call="layer(x, ids) if hasattr(layer, 'reads') else layer(x)" if self.reads else "layer(x)",
            loss=LOSSES[self.loss],
            tail=TAILS[self.tail],
            returned=RETURNED if self.returns_all else "loss",
            root=ROOTS[self.root],
            precision=self.precision,
            width="H" if self.head == "squares" else "V",
            batch=", ".join(f'"{name}": {made}' for name, (made, _) in inputs.items()),
            batches=self.batches,
            axes=", ".join(f'"{name}": {axes}' for name, (_, axes) in inputs.items()),
        )

    def _inputs(self, front: Front) -> dict[str, tuple[str, tuple[str, ...]]]:
        """How each input is made, and its axes."""
        tokens = "torch.randint(V, ({}), generator=g)"
        numbers = f"torch.randn({{}}, generator=g, dtype=torch.{self.precision})"
        sizes = front.beside.sizes
        label = front.samples if self.head == "pooled" else front.beside
        found = {"x": ((tokens if front.is_tokens else numbers).format(front.shape), front.axes)}
        match self.head:
            case "pooled":
                found["y"] = tokens.format(f"{label.sizes},"), label.axes
            case "squares":
                found["y"] = numbers.format(f"{sizes}, H"), (*label.axes, "target")
            case _:
                some = f"torch.rand({sizes}, generator=g) < 0.3"
                found["y"] = f"torch.where({some}, -100, {tokens.format(sizes)})", label.axes
        if self.reads and not self._are_tokens(front):
            found["ids"] = tokens.format(sizes), front.beside.axes
        return found

    def _are_tokens(self, front: Front) -> bool:
        """Whether the first input is what layers read."""
        return front.is_tokens and front.x == front.beside

    def _start(self, front: Front) -> Iterator[str]:
        """The lines that make activations of the inputs."""
        if self.reads:
            yield f"ids = {'x' if self._are_tokens(front) else 'ids'}{front.beside.fold}"
        label = front.samples if self.head == "pooled" else front.beside
        if label.fold:
            yield f"y = y{label.fold}"
        yield f"x, terms = self.front(x){front.x.fold}, []"

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
        for name, plain in PLAINEST.items():
            if getattr(self, name) != plain:
                yield replace(self, **{name: plain})
        if self.head != "squares":
            yield replace(self, head="squares")
        if self.is_tied and self.head != "tied":
            yield replace(self, head=self.loss)
        if self.front != "linear" and not self.is_tied:
            yield replace(self, front="linear")
            yield replace(self, front=PLAINER.get(self.front, "linear"))
        if self.batches > 1:
            yield replace(self, batches=1)
        for name in ("batch", "seq", "vocab"):
            for size in (2, 4, 6, 8):
                if size < getattr(self, name) and not (name in self.kept and name != "batch"):
                    yield replace(self, **{name: size})

    @property
    def takes_any_length(self) -> bool:
        """Whether its inputs may have longer and shorter sequences than the example."""
        texts = (inspect.getsource(CLASSES[name]) for name, _ in self.layers)
        is_plain = FRONTS[self.front].x.axes == FRONTS[self.front].beside.axes == ("batch", "seq")
        return is_plain and self.tail != "picked" and "seq" not in self.kept and not any(map(SIZE.search, texts))

    @property
    def kept(self) -> set[str]:
        """The sizes that layers were made for."""
        asked = {p for name, _ in self.layers for p in inspect.signature(CLASSES[name]).parameters}
        return {"seq" if name in SIZED else name for name in asked & {*SIZED, "vocab"}}


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

    def forward(self, {names}) -> Tensor:
        {start}
        for layer in self.h:
            x = {call}
            if isinstance(x, tuple):
                x, term = x
                terms.append(term){root}
        loss = {loss}
        for term in terms:
            loss = loss + term{tail}
        return {returned}


def net():
    g = torch.Generator().manual_seed(0)
    batches = [{{{batch}}} for _ in range({batches})]
    return Net().to(torch.{precision}), batches, {{{axes}}}
"""

LOSSES = {
    "classes": "F.cross_entropy(self.head(x).flatten(0, 1), y.flatten())",
    "tied": "F.cross_entropy(self.head(x).flatten(0, 1), y.flatten())",
    "squares": "(self.head(x) - y).square().mean()",
    "pooled": "F.cross_entropy(self.head(x.mean(1)), y)",
    **{name: f"{name}(self.head(x), y)" for name in VOCABULARY},
}
RETURNED = (
    '{"loss": loss, "second": self.front.weight.square().mean() + 0.1 * x.tanh().mean(), "x": x,'
    ' "some": (x.amax(-1), {"weight": self.head.weight, "half": x[:, ::2] * 0.5}), "ones": torch.ones(3)}'
)
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
        "picked": "rows = torch.arange(len(x), device=x.device)\n        loss = loss + x[rows, rows % S].pow(2).mean()",
        "contrast": "loss = loss + F.cross_entropy(x.mean(1) @ x.mean(1).t(), torch.arange(len(x), device=x.device))",
        "largest": "loss = loss + 0.01 * self.head(x).abs().max() + 0.01 * x.norm(float('inf'))",
        "middle": "loss = loss + 0.1 * self.head(x).median() - 0.01 * x.min()",
        "normal": "loss = loss + 0.1 * torch.normal(x, 0.5).mean() + torch.normal(self.head(x), 0.1).square().mean()",
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
