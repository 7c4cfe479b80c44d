"""Random tensors and dropout from a key and logical positions: what a part draws, one device draws for its elements.

All functions take `key`, int32 [2]; `index`, for each axis of the noise the logical positions of the local part, 1-D;
`sizes`, the logical sizes; and the generator ("hash" or "philox"). See `bits.py`.
"""

import math
from collections.abc import Sequence

import torch

from .bits import Generator, fill, further_key, step_keys

__all__ = ["attention_dropout", "dropout", "integers", "keep", "normal", "step_keys", "uniform"]

Index = Sequence[torch.Tensor]
Sizes = Sequence[int]

DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


def uniform(
    key: torch.Tensor, index: Index, sizes: Sizes, generator: Generator, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Numbers in [0, 1), multiples of the distance between the largest two of the type, as PyTorch draws them."""
    digits = DIGITS[dtype]
    if digits > 32:
        return _fraction(_long(key, index, sizes, generator), 53)

    def take(words: torch.Tensor, out: torch.Tensor) -> None:
        torch.mul((words >> (32 - digits)).bitwise_and_((1 << digits) - 1), 2.0**-digits, out=out)

    return fill(dtype, key, index, sizes, generator, take)


def normal(
    key: torch.Tensor, index: Index, sizes: Sizes, generator: Generator, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Numbers of the standard normal distribution (Box and Muller 1958)."""
    if dtype == torch.float64:
        radius = 1 - _fraction(_long(key, index, sizes, generator), 53)
        angle = _fraction(_long(further_key(key, 2), index, sizes, generator), 53)
    else:
        radius = fill(torch.float32, key, index, sizes, generator, _positive)
        angle = uniform(further_key(key, 1), index, sizes, generator)
    found = radius.log_().mul_(-2).sqrt_().mul_(angle.mul_(2 * math.pi).cos_())
    return found.to(dtype)


def integers(
    low: int,
    high: int,
    key: torch.Tensor,
    index: Index,
    sizes: Sizes,
    generator: Generator,
    dtype: torch.dtype = torch.int64,
) -> torch.Tensor:
    """Integers from `low` to `high - 1`: a word modulo their number, one of 63 bits where 32 would favour the low ones."""
    count = high - low
    if count > 1 << 16:
        words = _long(key, index, sizes, generator)
    else:
        words = fill(torch.int64, key, index, sizes, generator, lambda words, out: out.copy_(words)) & ((1 << 32) - 1)
    return words.remainder_(count).add_(low).to(dtype)


def keep(chance: float, key: torch.Tensor, index: Index, sizes: Sizes, generator: Generator) -> torch.Tensor:
    """A bool mask, true with this chance (to 2**-32)."""
    last = round(chance * 2.0**32) - 2**31 - 1  # the largest word, as a signed one, that counts as true
    if last < -(2**31):
        return torch.zeros([len(i) for i in index], dtype=torch.bool, device=key.device)
    return fill(torch.bool, key, index, sizes, generator, lambda words, out: torch.le(words, last, out=out))


def dropout(
    x: torch.Tensor, p: float, key: torch.Tensor, index: Index, sizes: Sizes, generator: Generator
) -> torch.Tensor:
    """`x` with elements zero with chance `p` and the others divided by `1 - p`; autograd keeps the mask, a byte each.

    A mask with axes of size one is shared along them.
    """
    mask = keep(1 - p, key, index, sizes, generator)
    return (x * mask).mul_(1 / (1 - p) if p < 1 else 1.0)


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
) -> torch.Tensor:
    """Scaled dot product attention with dropout on the probabilities [batch.., query, key]: torch's math form.

    query [.., heads, q, d], keys [.., heads, k, d], values [.., heads, k, v] -> [.., heads, q, v].
    """
    if enable_gqa:
        keys = keys.repeat_interleave(query.shape[-3] // keys.shape[-3], -3)
        values = values.repeat_interleave(query.shape[-3] // values.shape[-3], -3)
    half = math.sqrt(1 / math.sqrt(query.shape[-1]) if scale is None else scale)  # both factors, as torch does
    scores = (query * half) @ (keys * half).transpose(-2, -1)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return dropout(_softmax(scores, mask), p, key, index, sizes, generator) @ values


def _softmax(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The softmax; a query that sees no key gets zeros, as in torch."""
    if mask is None or mask.dtype != torch.bool:
        return scores.softmax(-1)
    return torch.ops.aten._safe_softmax(scores, -1)  # type: ignore[no-any-return]


def _positive(words: torch.Tensor, out: torch.Tensor) -> None:
    """Numbers in (0, 1] that get finer towards zero, so that normal numbers reach 6.6."""
    torch.add(words.bitwise_and_((1 << 31) - 1), 0.5, out=out).mul_(2.0**-31)


def _long(key: torch.Tensor, index: Index, sizes: Sizes, generator: Generator) -> torch.Tensor:
    """Words of 63 bits, int64."""
    high, low = (
        fill(torch.int64, further_key(key, n), index, sizes, generator, lambda words, out: out.copy_(words))
        for n in (0, 1)
    )
    return (high & (1 << 31) - 1) << 32 | (low & (1 << 32) - 1)


def _fraction(words: torch.Tensor, digits: int) -> torch.Tensor:
    return (words >> (63 - digits)).to(torch.float64).mul_(2.0**-digits)
