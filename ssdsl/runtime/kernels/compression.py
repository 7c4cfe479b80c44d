"""Tensors compressed along one dimension: `encode` makes of each line of numbers a shorter line of as many bytes for
all lines, `decode` makes numbers of it again.

A line is either its `k` largest numbers, by absolute value, with their places; or all its numbers in eight bits, as
multiples of a 119th of the largest. Of equal numbers those in front are taken. Either is made of a line alone, so lines
may lie on any device. The bytes of a line are a line of `length` elements of the tensor's own type, so that autograd,
messages and collectives move them as they move numbers. What is no number is chosen so that no element is an infinity,
NaN or subnormal, in any type: a sum with zeros, as autograd makes one of parts, leaves it as it is.

Backward does the same to gradients: that of `decode` is `encode`, and that of `encode` is `decode`.

>>> x = torch.tensor([[3.0, -1.0, 2.0, -5.0]])
>>> decode(encode(x, dim=1, length=4, k=2), dim=1, size=4, k=2)
tensor([[ 3.,  0.,  0., -5.]])
"""

from typing import Any

import torch

from .line_bytes import PLACES
from .own_gradient import with_gradient

LEVELS = 119  # of a number, with its sign
LOWEST = 4  # the byte of zero: with its sign it is the first byte of a number that is not subnormal
FIRST = 0x2000  # the 16 bits of the first place, likewise


def _decoded(ctx: Any, given: torch.Tensor) -> torch.Tensor:
    return _from_code(given, *ctx.how)


def _encoded(ctx: Any, given: torch.Tensor) -> torch.Tensor:
    return _code(given, *ctx.how)


@with_gradient(_decoded)
def encode(ctx: Any, x: torch.Tensor, dim: int, length: int, k: int | None = None) -> torch.Tensor:
    """[..., size, ...] -> [..., length, ...]: the bytes of each line along `dim`."""
    ctx.how = dim, x.shape[dim], k
    return _code(x, dim, length, k)


@with_gradient(_encoded)
def decode(ctx: Any, code: torch.Tensor, dim: int, size: int, k: int | None = None) -> torch.Tensor:
    """[..., length, ...] -> [..., size, ...]: the numbers of each line along `dim`."""
    ctx.how = dim, code.shape[dim], k
    return _from_code(code, dim, size, k)


def bytes_of(x: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor: [..., n] -> [..., n * itemsize]."""
    x = x.contiguous()
    if x.stride(-1) != 1:  # of an axis of size one, which is contiguous whatever its stride
        x = x.clone(memory_format=torch.contiguous_format)
    return x.view(torch.uint8)


def _code(x: torch.Tensor, dim: int, length: int, k: int | None) -> torch.Tensor:
    lines = x.movedim(dim, -1)
    if k is None:
        scale = lines.abs().amax(-1, keepdim=True) / LEVELS
        parts = [scale, _levels(torch.where(scale > 0, lines / scale, 0))]
    else:
        largest = lines.abs().sort(stable=True, dim=-1, descending=True).indices[..., :k]
        digits = [largest % PLACES] if lines.shape[-1] <= PLACES else [largest % PLACES, largest // PLACES]
        parts = [lines.gather(-1, largest), *((digit + FIRST).to(torch.int16) for digit in digits)]
    found = torch.cat([bytes_of(part) for part in parts], -1)
    found = torch.nn.functional.pad(found, (0, length * x.element_size() - found.shape[-1]), value=LOWEST)
    return found.view(x.dtype).movedim(-1, dim).contiguous()


def _from_code(code: torch.Tensor, dim: int, size: int, k: int | None) -> torch.Tensor:
    lines = bytes_of(code.movedim(dim, -1))
    if k is None:
        scale, levels = _taken(lines, (code.dtype, 1), (torch.uint8, size))
        sizes = (levels & 127).to(code.dtype) - LOWEST
        found = torch.where(levels < 128, sizes, -sizes) * scale
    else:
        k = min(k, size)
        values, *digits = _taken(lines, (code.dtype, k), *[(torch.int16, k)] * (1 if size <= PLACES else 2))
        places = sum((digit.long() - FIRST) * PLACES**n for n, digit in enumerate(digits))
        found = values.new_zeros(*values.shape[:-1], size).scatter(-1, places.clamp(0, size - 1), values)
    return found.movedim(-1, dim).contiguous()


def _levels(x: torch.Tensor) -> torch.Tensor:
    """The bytes of numbers from -119 to 119: a sign and a size."""
    x = x.nan_to_num(0.0).round().clamp(-LEVELS, LEVELS)
    return (x.abs() + LOWEST + torch.where(x < 0, 128, 0)).to(torch.uint8)


def _taken(lines: torch.Tensor, *parts: tuple[torch.dtype, int]) -> list[torch.Tensor]:
    """The parts of each line of bytes, one after another, by their type and number."""
    found, start = [], 0
    for dtype, count in parts:
        end = start + count * dtype.itemsize
        found.append(lines[..., start:end].clone(memory_format=torch.contiguous_format).view(dtype))
        start = end
    return found
