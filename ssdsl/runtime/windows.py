"""Operators of which one part runs along axes that they read by windows.

A part's input is the region that its results need, clipped to the whole tensor: what lies outside is padding, which the
part adds itself.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F


class Part(NamedTuple):
    """Along `axis`, the results start..end of the whole, from an input that begins at `first` of `size` positions."""

    axis: int
    start: int
    end: int
    first: int
    size: int


def padded(x: torch.Tensor, part: Part, stride: int, before: int, span: int, value: float = 0.0) -> torch.Tensor:
    """The input of windows that begin at `start * stride - before`, with padding where they leave the tensor."""
    low = part.start * stride - before
    high = (part.end - 1) * stride - before + span
    front, behind = part.first - low, high - part.first - x.shape[part.axis]
    return F.pad(x, [0, 0] * (x.dim() - 1 - part.axis) + [front, behind], value=value)


def conv_part(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int] | str,
    dilation: Sequence[int],
    groups: int,
    parts: Sequence[Part],
) -> torch.Tensor:
    """A convolution in one to three dimensions; arguments as of `torch.conv2d`."""
    rank = weight.dim() - 2
    stride, dilation = (n if len(n) == rank else [*n] * rank for n in (stride, dilation))
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:], strict=True)]
    if isinstance(padding, str):
        both = [(0, 0)] * rank if padding == "valid" else [((n - 1) // 2, n // 2) for n in spans]
    else:
        both = [(n, n) for n in (padding if len(padding) == rank else [*padding] * rank)]
    by_axis = {part.axis: part for part in parts}
    for at, (front, behind) in enumerate(both):
        axis = x.dim() - rank + at
        if axis in by_axis:
            x = padded(x, by_axis[axis], stride[at], front, spans[at])
        elif front or behind:
            x = F.pad(x, [0, 0] * (x.dim() - 1 - axis) + [front, behind])
    convolve = (torch.conv1d, torch.conv2d, torch.conv3d)[rank - 1]
    return convolve(x, weight, bias, stride, 0, dilation, groups)
