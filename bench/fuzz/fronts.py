"""What random models are given: tokens or numbers, and how their axes become those of activations [batch, seq, hidden].

An axis of the activations may be made of two dimensions: the sequence of the rows and columns of an image, the batch of
groups of samples, the hidden axis of streams.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Input:
    """Its sizes in front of features, the names of its axes, and how they become one axis."""

    sizes: str
    axes: tuple[str, ...]
    fold: str = ""


@dataclass(frozen=True, slots=True)
class Front:
    """The module that reads the first input, that input, and those beside it: labels and tokens.

    `features` are behind the sizes of an input of numbers; one of tokens has none.
    """

    make: str
    x: Input
    beside: Input
    samples: Input
    features: str = ""
    in_front: bool = False  # features in front of rows and columns

    @property
    def is_tokens(self) -> bool:
        return not self.features

    @property
    def shape(self) -> str:
        """The first input's."""
        if self.in_front:
            batch, _, space = self.x.sizes.partition(", ")
            return f"{batch}, {self.features}, {space}"
        return f"{self.x.sizes}, {self.features}" if self.features else self.x.sizes

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the first input's axes."""
        if self.in_front:
            return self.x.axes[0], "feature", *self.x.axes[1:]
        return (*self.x.axes, "feature") if self.features else self.x.axes


BATCH = Input("B", ("batch",))
GROUPS = Input("B // A, A", ("batch", "sample"), ".flatten()")
PLAIN = Input("B, S", ("batch", "seq"))
PIXELS = Input("B, S // C, C", ("batch", "height", "width"), ".flatten(1, 2)")
SHOTS = Input("B // A, A, S", ("batch", "sample", "seq"), ".flatten(0, 1)")
STREAMS = Input("B, S, 2", ("batch", "seq", "stream"), ".flatten(2)")
PATCHES = Input("B, 2 * (S // C), 2 * C", ("batch", "height", "width"), ".flatten(2).transpose(1, 2)")
GRID = Input("B, S // C, C", ("batch", "row", "column"), ".flatten(1, 2)")

FRONTS = {
    "linear": Front("nn.Linear(V, H)", PLAIN, PLAIN, BATCH, "V"),
    "embedding": Front("nn.Embedding(V, H)", PLAIN, PLAIN, BATCH),
    "padded": Front("nn.Embedding(V, H, padding_idx=1)", PLAIN, PLAIN, BATCH),
    "sparse": Front("nn.Embedding(V, H, sparse=True)", PLAIN, PLAIN, BATCH),
    "pixels": Front("nn.Linear(V, H)", PIXELS, PIXELS, BATCH, "V"),
    "codes": Front("nn.Embedding(V, H)", PIXELS, PIXELS, BATCH),
    "patches": Front("nn.Conv2d(V, H, 2, 2)", PATCHES, GRID, BATCH, "V", in_front=True),
    "shots": Front("nn.Linear(V, H)", SHOTS, SHOTS, GROUPS, "V"),
    "sentences": Front("nn.Embedding(V, H)", SHOTS, SHOTS, GROUPS),
    "streams": Front("nn.Linear(V, H // 2)", STREAMS, PLAIN, BATCH, "V"),
    "books": Front("nn.Embedding(V, H // 2)", STREAMS, PLAIN, BATCH),
}
MERGED = ("pixels", "codes", "patches", "shots", "sentences", "streams", "books")  # with an axis of two dimensions
TIED = ("embedding", "padded", "codes", "sentences")  # whose weight a head may share
PLAINER = {  # for the shrinker; any other becomes "linear"
    "padded": "embedding",
    "sparse": "embedding",
    "codes": "pixels",
    "patches": "pixels",
    "sentences": "shots",
    "books": "streams",
}


def divisor(size: int) -> int:
    """The smallest one above 1: the columns of an image, the samples of a group.

    >>> divisor(9), divisor(5)
    (3, 5)
    """
    return next(n for n in range(2, size + 1) if size % n == 0)
