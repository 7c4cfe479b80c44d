"""Which random models are drawn: of any layers, or mostly of those of a theme, with the arguments of each."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from bench.fuzz.fronts import FRONTS, MERGED, TIED
from bench.fuzz.layers import CLASSES, ROW_OF
from bench.fuzz.models import HEADS, ROOTS, TAILS, VOCABULARY, Layer, Recipe

DROPS = ("attention", "path", "channels", "noise", "slopes", "elements", "elements", "around")
MOVES = ("flip", "roll", "roll batch", "cat", "stack", "shift", "mean", "turn")
ALL = ("cumsum", "cumprod", "logcumsumexp", "topk", "sort", "max", "var", "softmax", "logsumexp")
IMAGES = (
    *("plain", "norm", "norm", "pool", "drop", "groups"),
    *("strided", "dilated", "even", "large", "transposed", "maximum"),
)
SEQUENCES = ("causal", "causal", "causal", "masked", "near", "open", "biased", "dropped")
PIXELS = ("open", "open", "causal", "masked", "plain", "grouped", "reduced")
PATCHES = ("open", "causal", "first")
WINDOWS = ("open", "shifted", "biased", "plain", "causal")
UNLISTED = ("batch", "hidden", "kthvalue", "trace", "inverse")
STATISTICS = (
    *("instance", "instance", "instance alone", "instance image", "sequence", "cumulative", "stateless"),
    *("groups", "rows", "frozen", "image"),
)
OBSERVED = ("variance", "largest", "everything", "last", "counts", "mean")
WHOLE = (
    *("max", "max", "min", "amax", "absolute", "absolute", "range", "infinity", "least", "norm", "sum of sizes"),
    *("median", "quantile", "kth", "top", "sorted", "place", "logsumexp", "std", "count", "root"),
)
CHANGED = (
    *("merged", "merged", "merged batch", "everything", "heads", "pairs", "first", "last sample", "transposed"),
    *("masked", "chosen", "index", "added", "diagonal", "copied", "unfolded", "twice", "shared", "chain"),
)
STRIDED = (
    *("rotary", "rotary", "complex", "halves", "fourier", "fourier hidden", "fourier both", "short fourier"),
    *("strides", "windows", "unfold", "unfold hidden", "blocks", "every second", "expanded", "polar"),
)
CELLS = ("index", "select", "scatter", "add", "one", "each", "largest", "smallest", "mean")
PICKED = ("first", "last", "two", "sample", "feature", "each", "running")
DOCUMENTS = ("starts", "starts", "ends", "largest", "lengths", "padding")
POSITIONS = ("within", "padded", "left", "backwards", "angles", "plain")
COUNTED = (
    *("mean", "mean of all", "share", "order", "counts", "how often"),
    *("last", "largest", "next", "product", "sum"),
)
LOOKED = ("sparse", "padded", "by frequency", "pairs", "by hand", "product")
BAGS = ("plain", "sparse", "padded", "by frequency", "pairs", "offsets")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a model that is drawn, and what draws."""

    draw: Random
    seq: int
    hidden: int
    vocab: int

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def one(self, *choices: object) -> object:
        return self.draw.choice(choices)

    def wide(self) -> int:
        """A size between layers."""
        return self.draw.choice([self.hidden, 2 * self.hidden, 4 * self.hidden])

    def divisor(self, size: int, *choices: int) -> int:
        """One of the choices that divide a size; 1 is one of them."""
        return self.draw.choice([n for n in choices if size % n == 0])

    def grid(self) -> tuple[int, int]:
        """Rows and columns of the sequence."""
        rows = self.divisor(self.seq, *range(1, self.seq + 1))
        return rows, self.seq // rows

    def heads(self) -> tuple[int, int]:
        """Heads, and groups of them."""
        heads = self.divisor(self.hidden, 2, 4, 6)
        return heads, self.divisor(heads, 1, 2, 3)


def _windows(s: Sizes) -> tuple[object, ...]:
    rows, columns = s.grid()
    window = s.divisor(rows, 1, 2, 3, rows), s.divisor(columns, 1, 2, 3, columns)
    return s.hidden, (rows, columns), window, s.one(*WINDOWS)


def _bag(s: Sizes) -> tuple[object, ...]:
    mode = s.draw.choice(["mean", "sum", "max"])
    kinds = {"mean": BAGS, "sum": (*BAGS, "weighted"), "max": ("plain", "padded", "pairs", "offsets")}
    return s.hidden, s.vocab, mode, s.one(*kinds[mode])


def _sampled(s: Sizes) -> tuple[object, ...]:
    sides = s.one((4, 6), (6, 3), (4, 2, 6), (2, 4, 3))
    return (
        s.hidden,
        sides,
        s.one("bilinear", "bilinear", "nearest"),
        s.one("zeros", "border", "reflection"),
        s.chance(0.5),
    )


ARGUMENTS: dict[str, Callable[[Sizes], tuple[object, ...]]] = {
    "Mlp": lambda s: (s.hidden, s.wide(), s.chance(0.6), s.one("gelu", "relu", "silu")),
    "Plain": lambda s: (s.hidden, s.chance(0.6)),
    "BareMlp": lambda s: (s.hidden, s.wide()),
    "Conv": lambda s: (s.hidden, s.wide()),
    "Attention": lambda s: (s.hidden, 2),
    "Grouped": lambda s: (s.hidden, *s.heads(), s.seq, s.one(*SEQUENCES)),
    "Drops": lambda s: (s.hidden, s.one(*DROPS)),
    "Image": lambda s: (s.one(2, 4), s.one(*IMAGES)),
    "Parametrized": lambda s: (s.hidden, s.one("weight_norm", "spectral_norm", "spectral_norm", "orthogonal")),
    "Recurrent": lambda s: (s.hidden, s.one("GRU", "LSTM")),
    "Position": lambda s: (s.seq, s.hidden),
    "Moves": lambda s: (s.one(*MOVES),),
    "All": lambda s: (s.one(*ALL), s.draw.randint(0, 2)),
    "Unlisted": lambda s: (s.one(*UNLISTED),),
    "MinMax": lambda s: (s.hidden,),
    "Detached": lambda s: (s.hidden, s.chance(0.5)),
    "Gates": lambda s: (s.hidden, s.one(2, 4)),
    "Routed": lambda s: (s.hidden, s.one(2, 4, 5, 6), s.one(1, 2)),
    "Switch": lambda s: (s.hidden, s.one(2, 3, 4, 6), s.one(1, 2, 3)),
    "Pixels": lambda s: (s.one(2, 4), 2, s.one(*PIXELS)),
    "Patches": lambda s: (s.hidden, s.divisor(s.seq, 1, 2) if s.hidden % 2 == 0 else 1, s.one(*PATCHES)),
    "Windows": _windows,
    "Axial": lambda s: (s.hidden, s.grid(), s.chance(0.5)),
    "Cross": lambda s: (s.hidden, s.one(2, 4), s.one("text", "both", "pixels")),
    "Statistics": lambda s: (s.hidden, s.seq, s.one(*STATISTICS)),
    "Observed": lambda s: (s.hidden, s.one(*OBSERVED)),
    "ByHand": lambda s: (s.hidden, s.one((0, 1), (0,), (1,), (1, 2), (0, 1, 2))),
    "Whole": lambda s: (s.hidden, s.one(*WHOLE), s.chance(0.4)),
    "Quantized": lambda s: (s.hidden, s.chance(0.5)),
    "Changed": lambda s: (s.hidden, s.one(*CHANGED)),
    "Strided": lambda s: (s.hidden, s.one(*STRIDED, *(["rotary heads"] if s.hidden % 4 == 0 else []))),
    "Documents": lambda s: (s.hidden, s.one(*DOCUMENTS), s.chance(0.6), s.chance(0.7)),
    "Positions": lambda s: (s.hidden, s.seq, s.one(*POSITIONS)),
    "Counted": lambda s: (s.vocab, s.one(*COUNTED)),
    "Looked": lambda s: (s.hidden, s.vocab, s.one(*LOOKED)),
    "Bag": _bag,
    "Sampled": _sampled,
    "Picked": lambda s: (s.hidden, s.one(*PICKED)),
    "Cells": lambda s: (s.hidden, s.one(4, 6, 12), s.one(*CELLS)),
}
OFTEN = ("Mlp", "Mlp", "Mlp", "BareMlp", "Plain", "Attention", "Grouped", "Drops", "Drops", "All", "Unlisted")
NAMES = (*OFTEN, *CLASSES)
OLD = {
    "sequence": ("Grouped", "Grouped", "Grouped", "Attention", "Mlp", "Position", "Norm"),
    "space": ("Image", "Image", "Image", "Conv", "Mlp"),
    "experts": ("Routed", "Routed", "Switch", "Switch", "Gates", "Mlp", "Grouped"),
    "merged": ("All", "All", "Moves", "Unlisted", "Grouped", "Rows", "Norm", "Mlp"),
}
NEW = (
    *("attention over images and windows", "statistics", "in place and strided"),
    *("computed from inputs", "one number of everything", "read at points and indices"),
)
THEMES = OLD | {row: (*[n for n in CLASSES if ROW_OF[n] == row], "Mlp", "Grouped") for row in NEW}
LENGTHS = {"": [2, 3, 4, 6], "experts": [2, 3, 4, 6], "merged": [4, 6, 8, 9, 12]}  # else
LONG = [4, 6, 8, 9, 12, 13]


def draw_recipe(draw: Random) -> Recipe:
    """A model of one to five layers, of any kinds or mostly of those of a theme."""
    theme = draw.choice(["", "", *THEMES])
    hidden = draw.choice([4, 6, 8, 12])
    seq = draw.choice(LENGTHS.get(theme, LONG))
    head = draw.choice((*HEADS, "vocabulary", "vocabulary"))
    if head == "vocabulary":
        head = draw.choice(("", "tied ")) + draw.choice(VOCABULARY)
    front = _front(draw, theme, is_tied=head.startswith("tied"))
    names = [draw.choice(THEMES.get(theme, NAMES)) for _ in range(draw.randint(1, 3 if theme else 5))]
    vocab = draw.choice([6, 8, 10, 12])
    sizes = Sizes(draw, seq, hidden, vocab)
    chosen = tuple(_layer(sizes, name) for name in names)
    batch = draw.choice([2, 4, 4, 6, 5] if theme else [4, 6, 8, 8, 12, 5, 9])
    tail = draw.choice([*TAILS, *["nothing"] * len(TAILS)])
    root = draw.choice([*ROOTS, *["nothing"] * len(ROOTS)])
    meta, generator = draw.random() < 0.15, draw.choice([*["hash"] * 7, "philox"])
    return Recipe(batch, seq, hidden, vocab, front, chosen, head, draw.choice([1, 1, 2]), tail, root, meta, generator)


def _front(draw: Random, theme: str, is_tied: bool) -> str:
    """Numbers or tokens; always with an axis of two dimensions in their theme, elsewhere now and then."""
    names = MERGED if theme == "merged" or draw.random() < 0.25 else tuple(n for n in FRONTS if n not in MERGED)
    fitting = [name for name in names if name in TIED or not is_tied]
    usual = [name for name in fitting if name in ("linear", "embedding")]
    return draw.choice([*fitting, *usual * 3])


def _layer(sizes: Sizes, name: str) -> Layer:
    return name, ARGUMENTS[name](sizes) if name in ARGUMENTS else (sizes.hidden,)
