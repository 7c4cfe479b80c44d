"""Swin Transformer (Liu et al. 2021, arXiv 2103.14030): transformers' `SwinForImageClassification`, random weights.

1.8b to 27b are the sizes of the SuperScaler paper's evaluation (Lin et al. 2023, arXiv 2301.08984): images of 1536
pixels, windows of 48, all layers but six in the third stage, widths and heads doubling with each.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ssdsl.model.zoo.build import construct, image_batches
from ssdsl.model.zoo.options import DTYPES, choice

if TYPE_CHECKING:
    from ssdsl.model.source import Model
    from ssdsl.runtime.bits import Generator

ABOUT = "Swin Transformer, image classification"
PATCH = 4
CHANNELS = 3


@dataclass(frozen=True, slots=True)
class Swin:
    """The numbers of a Swin; `depths` and `heads` are per stage, `hidden` is the first's and doubles with each."""

    depths: tuple[int, ...]
    hidden: int
    heads: tuple[int, ...]
    image: int
    window: int
    batch: int
    labels: int
    dtype: str = choice(DTYPES, "fp32")
    attention: str = choice(("sdpa", "eager"), "sdpa")

    def problem(self) -> str:
        if len(self.depths) != len(self.heads):
            return f"depths has {len(self.depths)} stages and heads has {len(self.heads)}"
        for stage, heads in enumerate(self.heads):
            if (self.hidden << stage) % heads:
                return f"hidden = {self.hidden << stage} of stage {stage} is no multiple of heads = {heads}"
        last_patch = PATCH << (len(self.depths) - 1)
        if self.image % last_patch:
            return f"image = {self.image} is no multiple of {last_patch}, the pixels of the last stage's patches"
        if self.window > self.image // last_patch:
            patches = self.image // last_patch
            return f"window = {self.window} is larger than the last stage, which has {patches} x {patches} patches"
        return ""

    def parameters(self) -> int:
        widths = [self.hidden << stage for stage in range(len(self.depths))]
        patches = (CHANNELS * PATCH**2 + 3) * self.hidden
        stages = zip(self.depths, widths, self.heads, strict=True)
        positions = (2 * self.window - 1) ** 2  # of one patch relative to another in its window
        blocks = sum(n * (12 * w**2 + 13 * w + positions * h) for n, w, h in stages)
        merges = sum(8 * w**2 + 8 * w for w in widths[:-1])
        head = 2 * widths[-1] + (widths[-1] + 1) * self.labels
        return patches + blocks + merges + head

    def describe(self) -> str:
        depths, heads = "-".join(map(str, self.depths)), "-".join(map(str, self.heads))
        return f"{depths} layers, hidden {self.hidden}, {heads} heads, {self.image} px, window {self.window}"

    def build(self, name: str, seed: int, generator: "Generator", meta: bool) -> "Model":
        from ssdsl.model.source import Model

        module, recipes = construct(name, self._module, self.dtype, seed, generator, meta)
        axes = {"pixel_values": ("batch", "channel", "height", "width"), "labels": ("batch",)}
        shape = (self.batch, CHANNELS, self.image, self.image)
        batches = image_batches(shape, self.labels, self.dtype, seed, meta)
        return Model(name, module, batches, axes, generator, recipes)

    def _module(self, library: Any) -> Any:
        return library.SwinForImageClassification(self._config(library))

    def _config(self, library: Any) -> object:
        return library.SwinConfig(
            image_size=self.image,
            patch_size=PATCH,
            num_channels=CHANNELS,
            embed_dim=self.hidden,
            depths=list(self.depths),
            num_heads=list(self.heads),
            window_size=self.window,
            drop_path_rate=0.0,
            num_labels=self.labels,
            problem_type="single_label_classification",
            attn_implementation=self.attention,
        )


def _published(layers: int, hidden: int, heads: int) -> Swin:
    """A size of the paper, by its number of layers, and the width and heads of its first stage."""
    depths, doubled = (2, 2, layers - 6, 2), (heads, 2 * heads, 4 * heads, 8 * heads)
    return Swin(depths, hidden, doubled, image=1536, window=48, batch=256, labels=1000)


SIZES = {
    "tiny": Swin((2, 2), hidden=64, heads=(4, 8), image=64, window=4, batch=8, labels=16),
    "small": Swin((2, 2, 2, 2), hidden=32, heads=(4, 8, 16, 32), image=128, window=4, batch=8, labels=16),
    "1.8b": _published(32, 512, 16),
    "5b": _published(40, 768, 24),
    "10b": _published(48, 1024, 32),
    "27b": _published(56, 1536, 32),
}
LAPTOP = ("tiny", "small")
