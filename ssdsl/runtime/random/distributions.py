"""Random tensors and dropout from a key and logical positions: a part draws the numbers that one device draws for it.

All functions take `key`, int64 without axes; `index`, for each axis of the noise the logical positions of the local
part, 1-D; `sizes`, the logical sizes; and the generator ("hash" or "philox"). See `counter_rng.py`. The `DISTRIBUTIONS`
have two parameters each; some use only one. Most are the inverse of a distribution function, at a uniform number.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ..kernels.windows import Part
from .counter_rng import Generator, Take, fill, further_key

Index = Sequence[torch.Tensor]
Sizes = Sequence[int]
Draw = Callable[[float, float, torch.Tensor, Index, Sizes, Generator, torch.dtype], torch.Tensor]

# bits of the mantissa, with the implicit one
DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
LONG = (1 << 62) - 1  # the mask of 62 bits


class Words(NamedTuple):
    """The random words (32 bits each) of the elements of a part, and numbers made of them.

    A method that needs two words for each element takes the second from `further(1)`.
    """

    key: torch.Tensor
    positions: Index
    sizes: Sizes
    generator: Generator

    def filled(self, dtype: torch.dtype, take: Take) -> torch.Tensor:
        """A tensor of the part's shape and of this dtype; `take(words, out)` writes it from the words, int32."""
        return fill(dtype, *self, take)

    def further(self, number: int) -> "Words":
        """Other words for the same elements; number 0 gives these."""
        return self._replace(key=further_key(self.key, number))

    def copied(self) -> torch.Tensor:
        """The words as int64, from -2**31 to 2**31 - 1."""
        return self.filled(torch.int64, lambda words, out: out.copy_(words))

    def long(self) -> torch.Tensor:
        """Words of 62 bits, int64, not negative."""
        return (self.copied() << 32 | (self.further(1).copied() & (1 << 32) - 1)) & LONG

    def fraction(self, dtype: torch.dtype) -> torch.Tensor:
        """Numbers in [0, 1): multiples of 2**-digits for the digits of the dtype's mantissa, so that each is exact."""
        digits = DIGITS[dtype]
        if digits > 32:
            return (self.long() >> (62 - digits)).to(dtype).mul_(2.0**-digits)

        def take(words: torch.Tensor, out: torch.Tensor) -> None:
            # the shift repeats the sign bit, the mask removes it
            torch.mul((words >> (32 - digits)).bitwise_and_((1 << digits) - 1), 2.0**-digits, out=out)

        return self.filled(dtype, take)

    def positive(self, dtype: torch.dtype) -> torch.Tensor:
        """Numbers in (0, 1] that get finer towards zero, so that their logarithm reaches its tail; float64 if that is
        the dtype, else float32."""
        if dtype == torch.float64:
            return self.long().to(dtype).add_(0.5).mul_(2.0**-62)

        def take(words: torch.Tensor, out: torch.Tensor) -> None:
            torch.add(words.bitwise_and_((1 << 31) - 1), 0.5, out=out).mul_(2.0**-31)

        return self.filled(torch.float32, take)


DISTRIBUTIONS: dict[str, Draw] = {}


def _distribution(numbers: Callable[[float, float, Words, torch.dtype], torch.Tensor]) -> Draw:
    """Enters a distribution in `DISTRIBUTIONS`: the function that takes key, positions, sizes and generator one by one,
    and returns numbers of the dtype."""

    @functools.wraps(numbers)
    def draw(
        first: float,
        second: float,
        key: torch.Tensor,
        index: Index,
        sizes: Sizes,
        generator: Generator,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        return numbers(first, second, Words(key, index, sizes, generator), dtype).to(dtype)

    DISTRIBUTIONS[numbers.__name__] = draw
    return draw


@_distribution
def uniform(low: float, high: float, words: Words, dtype: torch.dtype) -> torch.Tensor:
    """Numbers in [low, high). For [0, 1) they are multiples of the largest spacing of the type in this interval, as in
    torch: 2**-24 for float32."""
    found = words.fraction(dtype)
    return found if (low, high) == (0, 1) else found.mul_(high - low).add_(low)


@_distribution
def normal(mean: float, std: float, words: Words, dtype: torch.dtype) -> torch.Tensor:
    """Normally distributed numbers: sqrt(-2 log u) cos(2 pi v) (Box and Muller 1958)."""
    radius = words.positive(dtype).log_().mul_(-2).sqrt_()
    # the radius may have taken two words, those of `further(0)` and `further(1)`
    angle = words.further(2).fraction(radius.dtype).mul_(2 * math.pi)
    found = radius.mul_(angle.cos_())
    return found if (mean, std) == (0, 1) else found.mul_(std).add_(mean)


@_distribution
def log_normal(mean: float, std: float, words: Words, dtype: torch.dtype) -> torch.Tensor:
    """Numbers whose logarithm is normally distributed, with this mean and deviation."""
    return normal(mean, std, *words, dtype).exp_()


@_distribution
def exponential(rate: float, _: float, words: Words, dtype: torch.dtype) -> torch.Tensor:
    """Numbers above zero with density rate exp(-rate x)."""
    return words.positive(dtype).log_().mul_(-1 / rate)


@_distribution
def geometric(chance: float, _: float, words: Words, dtype: torch.dtype) -> torch.Tensor:
    """The number of trials up to the first success at this chance: 1, 2, ..."""
    # P(x > k) = (1 - chance)**k, so x = ceil(log u / log(1 - chance)); if the chance is 1, all are 1
    scale = 1 / math.log1p(-chance) if 0 < chance < 1 else 0.0
    return words.positive(dtype).log_().mul_(scale).ceil_().clamp_(min=1)


@_distribution
def cauchy(median: float, sigma: float, words: Words, dtype: torch.dtype) -> torch.Tensor:
    """Cauchy-distributed numbers with this median; half of them are at most `sigma` away from it."""
    return words.positive(dtype).sub_(0.5).mul_(math.pi).tan_().mul_(sigma).add_(median)


@_distribution
def integers(low: float, high: float, words: Words, dtype: torch.dtype) -> torch.Tensor:
    """Integers from `low` to `high - 1`: a word modulo the range, of 62 bits if 32 bits would favour the low ones."""
    count = int(high) - int(low)
    # the remainders of 2**32 words differ in frequency by at most count / 2**32: 2**-16 up to this count
    found = words.long() if count > 1 << 16 else words.copied() & (1 << 32) - 1
    return found.remainder_(count).add_(int(low))


@_distribution
def bernoulli(chance: float, _: float, words: Words, dtype: torch.dtype) -> torch.Tensor:
    """Ones with this chance (precise to 2**-32), else zeros."""
    return keep(chance, *words)


# -- dropout -----------------------------------------------------------------------------------------------------------


def keep(chance: float, key: torch.Tensor, index: Index, sizes: Sizes, generator: Generator) -> torch.Tensor:
    """A bool mask of the part's shape, true with this chance."""
    # the largest word that counts as true; for chance 1/2 it is -1, and half of the signed words are at most -1
    last = round(chance * 2.0**32) - 2**31 - 1
    if last < -(2**31):
        return torch.zeros([len(i) for i in index], dtype=torch.bool, device=key.device)
    return fill(torch.bool, key, index, sizes, generator, lambda words, out: torch.le(words, last, out=out))


def dropout(
    x: torch.Tensor, p: float, key: torch.Tensor, index: Index, sizes: Sizes, generator: Generator
) -> torch.Tensor:
    """`x` with elements set to zero with chance `p`, and the others divided by `1 - p`. For backward autograd keeps the
    mask, one byte per element."""
    mask = keep(1 - p, key, index, sizes, generator)
    return (x * mask).mul_(1 / (1 - p) if p < 1 else 0.0)


def attention_dropout(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    key: torch.Tensor,
    index: Index,
    sizes: Sizes,
    generator: Generator,
    band: Sequence[int] | None = None,
    parts: Sequence[Part] = (),
) -> torch.Tensor:
    """Scaled dot product attention with dropout on the probabilities [batch.., query, key], in torch's math form.

    `parts` say where the queries are in the sequence; () means that they are all. The keys are then those in front of
    the queries, or those that they reach with `band` = (before, after), of which the mask has all columns.

    query [.., heads, q, d], keys [.., heads, k, d], values [.., heads, k, v] -> [.., heads, q, v].
    """
    if enable_gqa:
        keys = keys.repeat_interleave(query.shape[-3] // keys.shape[-3], -3)
        values = values.repeat_interleave(query.shape[-3] // values.shape[-3], -3)
    # both factors are multiplied by the root of the scale, as in torch: so the results round alike
    half = math.sqrt(1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    scores = (query * half) @ (keys * half).transpose(-2, -1)
    if is_causal:
        rows, columns = (torch.arange(n, device=scores.device) for n in scores.shape[-2:])
        if parts:
            rows = torch.cat([torch.arange(*run, device=scores.device) for run in parts[0].results])
        mask = columns <= rows[:, None]
    elif mask is not None and band and parts:
        mask = torch.cat([mask[..., start:end] for start, end in parts[0].reads(keys.shape[-2], band)], -1)
    if mask is not None and mask.dtype == torch.bool:
        # zeros, not NaN, for a query that sees no key
        chances = torch.ops.aten._safe_softmax(scores.masked_fill(~mask, -math.inf), -1)
    else:
        chances = (scores if mask is None else scores + mask).softmax(-1)
    return dropout(chances, p, key, index, sizes, generator) @ values
