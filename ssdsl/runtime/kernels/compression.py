"""Tensors compressed along one dimension: `encode` makes of each line of numbers a shorter line of as many bytes for
all lines, `decode` makes numbers of it again.

A line is either its `k` largest numbers, by absolute value, with their places; or all its numbers in eight bits, as
multiples of a 127th of the largest. Of equal numbers those in front are taken. Either is made of a line alone, so lines
may lie on any device. The bytes of a line are a line of `length` elements of the tensor's own type, so that autograd,
messages and collectives move them as they move numbers; nothing may compute with them.

Backward does the same to gradients: that of `decode` is `encode`, and that of `encode` is `decode`.

>>> x = torch.tensor([[3.0, -1.0, 2.0, -5.0]])
>>> decode(encode(x, dim=1, length=4, k=2), dim=1, size=4, k=2)
tensor([[ 3.,  0.,  0., -5.]])
"""

from typing import Any

import torch

from .line_bytes import SHORT
from .own_gradient import with_gradient

LEVELS = 127


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


def _code(x: torch.Tensor, dim: int, length: int, k: int | None) -> torch.Tensor:
    lines = x.movedim(dim, -1)
    if k is None:
        scale = lines.abs().amax(-1, keepdim=True) / LEVELS
        levels = torch.where(scale > 0, lines / scale, 0)
        parts = [scale, levels.nan_to_num(0.0).round().to(torch.int8)]
    else:
        largest = lines.abs().sort(stable=True, dim=-1, descending=True).indices[..., :k]
        parts = [lines.gather(-1, largest), largest.to(_places_type(lines.shape[-1]))]
    found = torch.cat([part.contiguous().view(torch.uint8) for part in parts], -1)
    found = torch.nn.functional.pad(found, (0, length * x.element_size() - found.shape[-1]))
    return found.view(x.dtype).movedim(-1, dim).contiguous()


def _from_code(code: torch.Tensor, dim: int, size: int, k: int | None) -> torch.Tensor:
    lines = code.movedim(dim, -1).contiguous().view(torch.uint8)
    if k is None:
        scale, levels = _taken(lines, (code.dtype, 1), (torch.int8, size))
        found = levels.to(code.dtype) * scale
    else:
        k = min(k, size)
        values, places = _taken(lines, (code.dtype, k), (_places_type(size), k))
        places = places.long().clamp(0, size - 1)
        found = values.new_zeros(*values.shape[:-1], size).scatter(-1, places, values)
    return found.movedim(-1, dim).contiguous()


def _taken(lines: torch.Tensor, *parts: tuple[torch.dtype, int]) -> list[torch.Tensor]:
    """The parts of each line of bytes, one after another, by their type and number."""
    found, start = [], 0
    for dtype, count in parts:
        end = start + count * dtype.itemsize
        found.append(lines[..., start:end].contiguous().view(dtype))
        start = end
    return found


def _places_type(size: int) -> torch.dtype:
    return torch.int16 if size <= SHORT else torch.int32
