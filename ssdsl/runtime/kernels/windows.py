"""Kernels of parts: convolutions, pooling and moves along split axes.

A part's input is the region that its results need, clipped to the whole tensor. Positions outside the tensor are
padding, which the part adds itself. `space` is the number of trailing space axes (height, width, ...). Other arguments
are those of the whole operator.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ..layout.regions import Runs, reach
from ..ranks.numbers import on_device
from .softmax_and_max import limit_of

aten = torch.ops.aten
Pair = tuple[torch.Tensor, torch.Tensor]


class Part(NamedTuple):
    """A part along `axis`: the results start..end of the whole, from an input that begins at position `first` of
    `size`. If the results are several `runs`, these lie between start and end. Of several tensors, the input is number
    `operand`."""

    axis: int
    start: int
    end: int
    first: int
    size: int
    runs: Runs = ()
    operand: int = 0

    @property
    def results(self) -> Runs:
        """The runs of the results."""
        return self.runs or ((self.start, self.end),)

    def reads(self, count: int, band: Sequence[int]) -> Runs:
        """The positions of the `count` keys that attention is given, each of whose queries sees `band` before and
        behind its own."""
        return reach(self.runs, self.size, *band) if self.runs else ((self.first, self.first + count),)


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
    """A convolution in one to three dimensions."""
    rank = weight.dim() - 2
    stride, dilation = _each(stride, rank), _each(dilation, rank)
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:], strict=True)]
    if isinstance(padding, str):
        both = [(0, 0)] * rank if padding == "valid" else [((n - 1) // 2, n // 2) for n in spans]
    else:
        both = [(n, n) for n in _each(padding, rank)]
    sizes = zip(x.shape[-rank:], both, spans, stride, strict=True)
    here = _everywhere(x, rank, parts, [(n + f + b - k) // s + 1 for n, (f, b), k, s in sizes])
    windows = _Windows(here, stride, [front for front, _ in both], spans)
    x, native, _ = windows.padded(x, 0.0)
    return (torch.conv1d, torch.conv2d, torch.conv3d)[rank - 1](x, weight, bias, stride, native, dilation, groups)


def conv_transpose_part(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    dilation: Sequence[int],
    parts: Sequence[Part],
) -> torch.Tensor:
    """A transposed convolution in one to three dimensions. Results that the input's windows produce outside the part
    are cut off."""
    rank = weight.dim() - 2
    stride, dilation = _each(stride, rank), _each(dilation, rank)
    padding, behind = _each(padding, rank), _each(output_padding, rank)
    cuts = []
    for part in parts:
        at = part.axis - x.dim() + rank
        span = dilation[at] * (weight.shape[2 + at] - 1) + 1
        # the inputs whose windows cover the part: `low` is the last whose window begins at or before the first result,
        # `high` the first whose window ends at or after the last one
        low = (part.start + padding[at]) // stride[at]
        high = max(low, -(-(part.end + padding[at] - span) // stride[at]))
        first = part.first if x.shape[part.axis] else low
        before, after = max(0, first - low), max(0, high + 1 - first - x.shape[part.axis])
        x = _pad(x, {part.axis: (before, after)}, 0.0)
        cuts.append((part, part.start - (first - before) * stride[at] + padding[at]))
        padding[at] = behind[at] = 0
    convolve = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)[rank - 1]
    result = convolve(x, weight, bias, stride, padding, behind, groups, dilation)
    for part, start in cuts:
        result = result.narrow(part.axis, start, part.end - part.start)
    return result.contiguous()


# -- moves -------------------------------------------------------------------------------------------------------------


def pad_part(x: torch.Tensor, pad: Sequence[int], parts: Sequence[Part], value: float | None = None) -> torch.Tensor:
    """Padding with a constant; negative amounts cut off."""
    amounts = {x.dim() - 1 - k: (pad[2 * k], pad[2 * k + 1]) for k in range(len(pad) // 2)}
    for part in parts:
        count = part.end - part.start
        front = min(count, max(0, amounts[part.axis][0] - part.start))
        amounts[part.axis] = (front, count - front - x.shape[part.axis])
    return _pad(x, amounts, value or 0).contiguous()


def slice_part(x: torch.Tensor, dim: int, step: int, parts: Sequence[Part]) -> torch.Tensor:
    """A slice: the part's input begins and ends with positions that it takes."""
    result: torch.Tensor = aten.slice(x, dim, 0, None, step)
    return result.contiguous()


def roll_part(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int], parts: Sequence[Part]) -> torch.Tensor:
    """Rolled axes. A part whose input goes over the end of the axis has what lies at the beginning of it first."""
    by_axis = {dim % x.dim(): shift for dim, shift in zip(_listed(dims), _listed(shifts), strict=True)}
    for part in parts:
        first = (part.start - by_axis[part.axis]) % part.size
        by_axis[part.axis] = -max(0, first + part.end - part.start - part.size)
    return torch.roll(x, [*by_axis.values()], [*by_axis])


def _listed(values: Sequence[int] | int) -> Sequence[int]:
    return [values] if isinstance(values, int) else values


def cat_part(tensors: Sequence[torch.Tensor], dim: int, parts: Sequence[Part]) -> torch.Tensor:
    """Joined tensors: the input of the part belongs to one of them, and of the others the part has all."""
    (part,) = parts
    pieces, begin = [], 0
    for number, x in enumerate(tensors):
        if number == part.operand:
            pieces.append(x)
            begin += part.size
            continue
        size = x.shape[part.axis]
        first, last = (min(max(0, k - begin), size) for k in (part.start, part.end))
        pieces.append(x.narrow(part.axis, first, last - first))
        begin += size
    return torch.cat(pieces, dim)


# -- pooling -----------------------------------------------------------------------------------------------------------


def max_pool_part(
    space: int,
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    parts: Sequence[Part],
) -> torch.Tensor:
    """Maxima of windows."""
    windows, kernel, dilation = _pooling(x, space, kernel_size, stride, padding, dilation, ceil_mode, parts)
    x, native, _ = windows.padded(x, limit_of(x.dtype), most=[k // 2 for k in kernel])
    pool = (torch.max_pool1d, torch.max_pool2d, torch.max_pool3d)[space - 1]
    return pool(x, kernel, windows.stride, native, dilation)


def max_pool_with_indices_part(
    space: int,
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    parts: Sequence[Part],
) -> Pair:
    """Maxima of windows, and their flat positions in the whole plane or volume."""
    windows, kernel, dilation = _pooling(x, space, kernel_size, stride, padding, dilation, ceil_mode, parts)
    x, native, front = windows.padded(x, limit_of(x.dtype), most=[k // 2 for k in kernel])
    pool = {2: aten.max_pool2d_with_indices, 3: aten.max_pool3d_with_indices}[space]
    result, indices = pool(x, kernel, windows.stride, native, dilation)
    return result, _in_whole(indices, x.shape[-space:], windows.parts, front)


def avg_pool_part(
    space: int,
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    parts: Sequence[Part],
    divisor_override: int | None = None,
) -> torch.Tensor:
    """Means of windows: over the elements in the tensor, over padding too, or divided by a given number."""
    windows, kernel, _ = _pooling(x, space, kernel_size, stride, padding, (1,), ceil_mode, parts)
    x, native, _ = windows.padded(x, 0.0, most=[k // 2 for k in kernel])
    pool = (aten.avg_pool1d, aten.avg_pool2d, aten.avg_pool3d)[space - 1]
    result: torch.Tensor = pool(x, kernel, windows.stride, native, False, True)
    if divisor_override is not None:
        return result * (math.prod(kernel) / divisor_override)
    for part, n, step, before in zip(windows.parts, kernel, windows.stride, windows.before, strict=True):
        low, high = (-before, part.size + before) if count_include_pad else (0, part.size)
        starts = [k * step - before for k in range(part.start, part.end)]
        shares = [n / (min(k + n, high) - max(k, low)) for k in starts]
        if any(share != 1 for share in shares):
            result = result * along(result, part.axis, shares)
    return result


# -- windows -----------------------------------------------------------------------------------------------------------


class _Windows(NamedTuple):
    """Windows along the axes of space: result k of an axis reads `span` positions from k * stride - before."""

    parts: list[Part]
    stride: list[int]
    before: list[int]
    span: list[int]

    def padded(
        self, x: torch.Tensor, value: float, most: Sequence[int] | None = None
    ) -> tuple[torch.Tensor, list[int], list[int]]:
        """The input padded for its windows; the padding that the operator itself has still to add on both sides of each
        axis (at most `most`, None for any); and the padding in front so far.

        Padding that the operator adds needs no copy. The operator pads both sides alike. So it pads only where the
        padding behind gives no further result, and where the input is no shorter than a window.
        """
        native, pads = [0] * len(self.parts), dict[int, tuple[int, int]]()
        for at, (part, stride, before, span) in enumerate(zip(*self, strict=True)):
            # rows 4..8 of 8 under windows of 3 with padding 1: the part has rows 3..8, so first = 3, 0 rows are missing
            # in front (3 - 4 + 1), and 1 behind (7 - 1 + 3 - 3 - 5)
            front = part.first - part.start * stride + before
            behind = (part.end - 1) * stride - before + span - part.first - x.shape[part.axis]
            if not x.shape[part.axis]:
                front, behind = front + behind, 0
            alike = (x.shape[part.axis] + 2 * front - span) // stride + 1 == part.end - part.start
            adds = front >= max(behind, 0) and x.shape[part.axis] >= span and alike
            if adds and (most is None or front <= most[at]):
                native[at] = front
            else:
                pads[part.axis] = (front, behind)
        return _pad(x, pads, value), native, [pads.get(part.axis, (0, 0))[0] for part in self.parts]


def _pooling(
    x: torch.Tensor,
    space: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    parts: Sequence[Part],
) -> tuple[_Windows, list[int], list[int]]:
    """The windows of pooling, its kernel and its dilation."""
    kernel = _each(kernel, space)
    stride, padding, dilation = _each(stride or kernel, space), _each(padding, space), _each(dilation, space)
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    sizes = zip(x.shape[-space:], spans, stride, padding, strict=True)
    results = [pooled(n, k, s, p, ceil_mode=ceil_mode) for n, k, s, p in sizes]
    return _Windows(_everywhere(x, space, parts, results), stride, padding, spans), kernel, dilation


def pooled(size: int, span: int, stride: int, padding: int, *, ceil_mode: bool) -> int:
    """The number of windows of pooling. With `ceil_mode` the last window may begin anywhere before the tensor's end.

    >>> pooled(13, 2, 2, 0, ceil_mode=False), pooled(13, 2, 2, 0, ceil_mode=True)
    (6, 7)
    """
    if not ceil_mode:
        return (size + 2 * padding - span) // stride + 1
    count = -(-(size + 2 * padding - span) // stride) + 1
    return count - 1 if (count - 1) * stride >= size + padding else count


def _everywhere(x: torch.Tensor, space: int, parts: Iterable[Part], results: Sequence[int]) -> list[Part]:
    """A part for each axis of space; whole axes have all `results`."""
    by_axis = {part.axis: part for part in parts}
    axes = range(x.dim() - space, x.dim())
    return [by_axis.get(k, Part(k, 0, n, 0, x.shape[k])) for k, n in zip(axes, results, strict=True)]


def _in_whole(indices: torch.Tensor, shape: Sequence[int], parts: Sequence[Part], front: Sequence[int]) -> torch.Tensor:
    """Flat positions in a tensor of this shape, `front` of which is padding, as flat positions in the whole tensor."""
    result, inner = torch.zeros_like(indices), 1
    for n, part, padding in reversed([*zip(shape, parts, front, strict=True)]):
        result += (indices % n + part.first - padding) * inner
        indices, inner = indices // n, inner * part.size
    return result


def along(x: torch.Tensor, axis: int, values: Sequence[float]) -> torch.Tensor:
    """One number per position of an axis, shaped to broadcast in a product."""
    return on_device(values, x.device, x.dtype).view(-1, *[1] * (x.dim() - 1 - axis))


def _pad(x: torch.Tensor, pads: dict[int, tuple[int, int]], value: float) -> torch.Tensor:
    """Pads axes in front and behind; negative numbers cut off."""
    if not any(n for both in pads.values() for n in both):
        return x
    return F.pad(x, [n for axis in reversed(range(min(pads), x.dim())) for n in pads.get(axis, (0, 0))], value=value)


def _each(values: Sequence[int], rank: int) -> list[int]:
    """One number per axis; a single number is used for all."""
    return [*values] * rank if len(values) == 1 else [*values]
