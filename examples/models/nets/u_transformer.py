"""A U-Net of residual blocks, which get the step of a diffusion, and of transformers, which get a context.

It predicts the noise in an image, as Stable Diffusion's does (Rombach et al. 2021, arXiv 2112.10752).
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from ssdsl.model.zoo.nets.inputs import Batch, noise
from ssdsl.model.zoo.u_transformer import CHANNELS, TARGETS, UTransformer

STEPS = 1000  # of the diffusion
LONGEST = 10_000  # the longest period of sine and cosine in the embedding of a step, divided by 2 pi


class UTransformerNet(nn.Module):
    """Returns the mean squared error of the predicted target.

    image [batch, CHANNELS, height, width], step [batch], context [batch, tokens, features], target [batch, TARGETS,
    height, width] -> a scalar.
    """

    def __init__(self, size: UTransformer) -> None:
        super().__init__()
        *upper, lowest = size.widths()
        self.base = size.base
        self.time = nn.Sequential(nn.Linear(size.base, size.timed), nn.SiLU(), nn.Linear(size.timed, size.timed))
        self.stem = nn.Conv2d(CHANNELS, size.base, 3, padding=1)
        self.down = nn.ModuleList(UNetLevel(size, a, w) for a, w in zip([size.base, *upper], upper, strict=False))
        self.smaller = nn.ModuleList(nn.Conv2d(w, w, 3, stride=2, padding=1) for w in upper)
        self.bottom = Residual(size, upper[-1], lowest)
        self.middle = UNetLevel(size, lowest, lowest)
        self.after = Residual(size, lowest, lowest)
        self.rise = nn.ModuleList(Residual(size, 2 * lowest, lowest) for _ in range(2))
        self.larger = nn.ModuleList(nn.Conv2d(w, w, 3, padding=1) for w in (lowest, *upper[:0:-1]))
        levels = zip(size.given_upwards(), upper, strict=True)
        self.up = nn.ModuleList(UNetLevel(size, a, w) for a, w in reversed(list(levels)))
        self.norm, self.head = nn.GroupNorm(size.groups, size.base), nn.Conv2d(size.base, TARGETS, 3, padding=1)

    def forward(
        self, image: torch.Tensor, step: torch.Tensor, context: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        time = F.silu(self.time(waves(step, self.base).to(image.dtype)))
        x, skips = self.stem(image), []
        for level, smaller in zip(self.down, self.smaller, strict=True):
            skips.append(level(x, time, context))
            x = smaller(skips[-1])
        y = self.bottom(x, time)
        z = self.after(self.middle(y, time, context), time)
        for skip, residual in zip((y, x), self.rise, strict=True):
            z = residual(torch.cat([z, skip], dim=1), time)
        for level, larger, skip in zip(self.up, self.larger, reversed(skips), strict=True):
            z = larger(F.interpolate(z, scale_factor=2.0, mode="nearest"))
            z = level(torch.cat([z, skip], dim=1), time, context)
        return F.mse_loss(self.head(F.silu(self.norm(z))), target)

    @staticmethod
    def example(size: UTransformer, draws: torch.Generator, meta: bool) -> Batch:
        """Noise, and a random step of the diffusion for each image."""
        space, lowest = (size.image, size.image), size.widths()[-1]
        shapes = ((CHANNELS, *space), (size.tokens, lowest), (TARGETS, *space))
        image, context, target = (noise((size.batch, *shape), draws, meta) for shape in shapes)
        step = torch.randint(STEPS, (size.batch,), generator=draws)
        return {"image": image, "step": step, "context": context, "target": target}


def waves(step: torch.Tensor, width: int) -> torch.Tensor:
    """The sinusoidal embedding of steps [batch] as [batch, width]: cosines and sines with `width` / 2 periods, from
    2 pi up to almost 2 pi * LONGEST (Ho et al. 2020, arXiv 2006.11239)."""
    half = width // 2
    rates = torch.exp(torch.arange(half, device=step.device) * (-math.log(LONGEST) / half))
    angles = step[:, None] * rates
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class Residual(nn.Module):
    """Adds the result of two convolutions to its input; the step's embedding is added between them."""

    def __init__(self, size: UTransformer, given: int, made: int) -> None:
        super().__init__()
        self.norm_in, self.norm_out = nn.GroupNorm(size.groups, given), nn.GroupNorm(size.groups, made)
        self.first, self.second = nn.Conv2d(given, made, 3, padding=1), nn.Conv2d(made, made, 3, padding=1)
        self.time = nn.Linear(size.timed, made)
        self.shortcut = nn.Conv2d(given, made, 1) if given != made else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.first(F.silu(self.norm_in(x))) + self.time(time)[:, :, None, None]
        y = self.second(F.silu(self.norm_out(y)))
        return y + self.shortcut(x)


class UNetLevel(nn.Module):
    """A residual block, and then a transformer."""

    def __init__(self, size: UTransformer, given: int, made: int) -> None:
        super().__init__()
        self.residual, self.transformer = Residual(size, given, made), Transformer(size, made)

    def forward(self, x: torch.Tensor, time: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return self.transformer(self.residual(x, time), context)


class Transformer(nn.Module):
    """Adds the result of a transformer's layer to its input, whose pixels are the tokens: attention among them,
    attention to the context, and a feed-forward."""

    def __init__(self, size: UTransformer, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(size.groups, width)
        self.enter, self.leave = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.among, self.across = (ToContext(width, given, size.heads) for given in (width, size.widths()[-1]))
        self.ffn = Gated(width)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        y = self.enter(self.norm(x)).flatten(2).transpose(1, 2)
        own = self.norms[0](y)
        y = y + self.among(own, own)
        y = y + self.across(self.norms[1](y), context)
        y = y + self.ffn(self.norms[2](y))
        return x + self.leave(y.transpose(1, 2).unflatten(2, x.shape[2:]))


class ToContext(nn.Module):
    """Attention of the tokens of `x` to those of a context, without a mask."""

    def __init__(self, width: int, given: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width, bias=False)
        self.k, self.v = nn.Linear(given, width, bias=False), nn.Linear(given, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        pairs = ((self.q, x), (self.k, context), (self.v, context))
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f, y in pairs)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Gated(nn.Module):
    """A feed-forward whose inner numbers are multiplied by GELU of others (Shazeer 2020, arXiv 2002.05202)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x) * F.gelu(self.gate(x)))
