"""The rows of convolutions, pooling and resampling."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ssdsl.model.dims.signature import (
    ONE,
    Axis,
    Letter,
    Signature,
    Windowed,
    axes,
    free,
    kept_whole,
    signature,
    whole,
    whole_axes,
)
from ssdsl.model.dims.window import Linear, Nearest, Sliding, Spread, Window
from ssdsl.model.graph import Ref
from ssdsl.model.ops.op import Op, PartKernel, Rule, call_of
from ssdsl.model.ops.reader import Shape, TypedCall

SPACE = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}  # by the number of axes
BICUBIC = 2  # among the modes of interpolation
IN, OUT = free("channels"), free("channels'")  # two dimensions with one role; the prime makes two letters of them


def convolution(call: TypedCall) -> Signature:
    """Space is split by the results, which read windows. Only a patch embedding (stride = kernel) of an input or weight
    of the model reads none: each axis of space is patches x kernel. Other tensors may have readers with windows."""
    x, w = call.shapes[:2]
    rank = len(w) - 2
    stride, padding, dilation = (_tuple(call.argument(n), rank) for n in ("stride", "padding", "dilation"))
    patches = call.call.args[0].value in call.outside
    patches = patches and stride == w[2:] and set(padding) <= {0, "valid"} and set(dilation) == {1}
    patches = patches and all(n % k == 0 for n, k in zip(x[-rank:], w[2:], strict=True))
    words = SPACE[rank]
    if patches:
        kernel = [whole(f"kernel_{word}", n) for word, n in zip(words, w[2:], strict=True)]
        space = [(*free(word), *inside) for word, inside in zip(words, kernel, strict=True)]
        return _convolved(call, space, kernel, [free(word) for word in words])
    return _convolved(call, *_sliding(call))


def transposed_convolution(call: TypedCall) -> Signature:
    """Space is split by the results, to which neighbouring inputs are added."""
    x, w = call.shapes[:2]
    rank = len(w) - 2
    stride, padding, dilation = (_tuple(call.argument(n), rank) for n in ("stride", "padding", "dilation"))
    windows = [Spread(*numbers) for numbers in zip(x[-rank:], stride, padding, w[2:], dilation, strict=True)]
    given, new = _windowed(windows)
    return _convolved(call, given, [whole(f"kernel_{word}") for word in SPACE[rank]], new, transposed=True)


def _sliding(call: TypedCall) -> tuple[list[Axis], list[Axis], list[Axis]]:
    """The axes of space of a convolution's input, windowed on those of the result; of its kernel; of its result."""
    x, w = call.shapes[:2]
    rank = len(w) - 2
    stride, dilation = (_tuple(call.argument(n), rank) for n in ("stride", "dilation"))
    before = [_before(call.argument("padding"), rank, at, dilation[at] * (w[2 + at] - 1)) for at in range(rank)]
    windows = [Sliding(*numbers) for numbers in zip(x[-rank:], stride, before, w[2:], dilation, strict=True)]
    given, new = _windowed(windows)
    return given, [whole(f"kernel_{word}") for word in SPACE[rank]], new


def _before(padding: Any, rank: int, at: int, around: int) -> int:
    """The padding in front of an axis; "same" puts half of the `around` positions there, and an odd one behind."""
    if padding == "same":
        return around // 2
    return 0 if padding == "valid" else int(_tuple(padding, rank)[at])


def _windowed(windows: Sequence[Window | None]) -> tuple[list[Axis], list[Axis]]:
    """The axes of space of an input and of a result that reads it by these windows; None: an axis is not split."""
    given, new = list[Axis](), list[Axis]()
    for word, window in zip(SPACE[len(windows)], windows, strict=True):
        of = None if window is None else Windowed(f"{word}'", window)
        given.append((Letter(word, fixed=True, window=of),))
        new.append((Letter(f"{word}'", fixed=of is None),))
    return given, new


def _convolved(
    call: TypedCall, space: list[Axis], kernel: list[Axis], out: list[Axis], *, transposed: bool = False
) -> Signature:
    """The signature of a convolution. With groups, channels are groups x channels of one, and the weight has the groups
    in its first axis: the channels of the result, or if it is transposed those of the input."""
    groups, given, made = ONE, IN, OUT
    if (count := call.argument("groups")) != 1:
        groups, given, made = (Letter("channels", size=count),), whole("given"), whole("made")
    first, second = (given, made) if transposed else (made, given)
    batch = [free("b")] if call.rank == len(space) + 2 else []
    rows = [[*batch, (*groups, *given), *space], [(*groups, *first), second, *kernel]]
    if isinstance(call.argument("bias"), Ref):
        rows.append([(*groups, *made)])
    return signature(rows, [[*batch, (*groups, *made), *out]], addends=(2,))


def _tuple(value: Any, rank: int) -> tuple[Any, ...]:
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return values * rank if len(values) == 1 else values


def _kept(call: TypedCall, windows: Sequence[Window | None]) -> Signature:
    """Batch and channels are kept, space is read by windows."""
    kept = axes(call.rank - len(windows))
    given, made = _windowed(windows)
    return signature([[*kept, *given]], [[*kept, *made]] * len(call.outputs))


def _pooling(rank: int) -> Rule:
    """Pooling: batch and channels are free, the last `rank` axes are read by windows."""

    def rule(call: TypedCall) -> Signature:
        kernel = _tuple(call.argument("kernel_size"), rank)
        stride, padding = (
            _tuple(call.argument(n) or default, rank) for n, default in (("stride", kernel), ("padding", 0))
        )
        step = _tuple(call.argument("dilation"), rank) if call.call.kind.startswith("max") else (1,) * rank
        numbers = zip(call.shape[-rank:], stride, padding, kernel, step, strict=True)
        return _kept(call, [Sliding(*each) for each in numbers])

    return rule


def nearest(call: TypedCall) -> Signature:
    """Nearest upsampling. Space cannot be split where torch rounds differently for each memory format: if the results
    are as many as the positions, or twice as many, but the factor is not exactly 1 or 2."""
    if not _of_modules(call):
        return _whole_space(call.rank - 2)(call)
    windows = [Nearest(*numbers) for numbers in _resampled(call)]
    return _kept(call, [None if w.results in (w.size, 2 * w.size) and not w.is_even else w for w in windows])


def linear(call: TypedCall) -> Signature:
    """Linear, bilinear or trilinear resampling."""
    if not _of_modules(call):
        return _whole_space(call.rank - 2)(call)
    corners = bool(call.argument("align_corners"))
    return _kept(call, [Linear(size, results, corners, factor) for size, results, factor in _resampled(call)])


def _of_modules(call: TypedCall) -> bool:
    """Whether the call is of the overload that torch.nn calls."""
    return str(call.call.target).endswith(".vec")


def _resampled(call: TypedCall) -> list[tuple[int, int, float | None]]:
    """Along each axis of space the size before and after, and the factor that the call gives."""
    rank = call.rank - 2
    factors = call.argument("scale_factors") or (None,) * rank
    return [*zip(call.shape[2:], call.result[2:], factors, strict=True)]


def _whole_space(rank: int) -> Callable[[TypedCall], Signature]:
    """The rule of an operator whose results read positions far away: batch and channels are free, space is whole, the
    last `rank` axes."""

    def rule(call: TypedCall) -> Signature:
        kept = axes(call.rank - rank)
        given, made = ([whole(form.format(word)) for word in SPACE[rank]] for form in ("{}", "{}'"))
        sizes = zip(given, made, call.shape[-rank:], call.result[-rank:], strict=True)
        made = [a if n == m else b for a, b, n, m in sizes]
        return signature([[*kept, *given]], [[*kept, *made]] * len(call.outputs))

    return rule


def pixel_shuffle(call: TypedCall) -> Signature:
    small, large = _pixels(call, int(call.args[1]))
    return signature([small], [large])


def pixel_unshuffle(call: TypedCall) -> Signature:
    small, large = _pixels(call, int(call.args[1]))
    return signature([large], [small])


def _pixels(call: TypedCall, r: int) -> tuple[list[Axis], list[Axis]]:
    """The axes of an image with r² times the channels, and of the one that is r times as high and wide."""
    down, right, batch = whole("r", r), whole("q", r), axes(call.rank - 3)
    small = [*batch, (*free("c"), *down, *right), free("h"), free("w")]
    return small, [*batch, free("c"), (*free("h"), *down), (*free("w"), *right)]


def _flops(call: TypedCall) -> int:
    """FLOPs where each output is a sum over a kernel in every channel."""
    return 2 * math.prod(call.result) * math.prod(call.shapes[1][1:])


def _transposed_flops(call: TypedCall) -> int:
    """FLOPs where each input is multiplied by a kernel for every channel."""
    return 2 * math.prod(call.shape) * math.prod(call.shapes[1][1:])


def channel_shuffle(call: TypedCall) -> Signature:
    """Channels are groups x channels of a group, and afterwards the groups are innermost."""
    groups, space = whole("groups", int(call.args[1])), axes(call.rank - 2, "x")
    return signature(
        [[free("b"), (*groups, *free("c")), *space]],
        [[free("b"), (*free("c"), *groups), *space]],
    )


def im2col(call: TypedCall) -> Signature:
    """Windows of an image as columns, [channels x kernel, windows]; only channels can be split."""
    batch, columns = _columns(call, call.shape, call.result)
    return signature([[*batch, free("c"), *whole_axes(2, "x")]], [columns])


def col2im(call: TypedCall) -> Signature:
    """Columns, as of `im2col`, added up to an image."""
    batch, columns = _columns(call, call.result, call.shape)
    return signature([columns], [[*batch, free("c"), *whole_axes(2, "x")]])


def _columns(call: TypedCall, image: Shape, columns: Shape) -> tuple[list[Axis], list[Axis]]:
    batch = [free("b")] if len(image) == 4 else []
    return batch, [*batch, (*free("c"), *whole("kernel", columns[-2] // image[-3])), whole("windows")]


CONVOLUTION = call_of("conv_part", "input weight bias | stride padding dilation groups parts")
TRANSPOSED = call_of("conv_transpose_part", "input weight bias | stride padding output_padding groups dilation parts")
WINDOW = "self | kernel_size stride padding"
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


def _of_space(n: int) -> Iterator[Op]:
    """The rows of the operators with `n` axes of space."""
    yield Op(
        f"aten::conv{n}d",
        convolution,
        windows=CONVOLUTION,
        groups=("groups", -1 - n),
        contraction=True,
        fresh=True,
        flops=_flops,
        text=f"F.conv{n}d",
    )
    yield Op(
        f"aten::conv_transpose{n}d",
        transposed_convolution,
        windows=TRANSPOSED,
        groups=("groups", -1 - n),
        contraction=True,
        fresh=True,
        flops=_transposed_flops,
    )
    most = f"{n} {WINDOW} dilation ceil_mode parts"
    mean = f"{n} {WINDOW} ceil_mode count_include_pad divisor_override{'' if n > 1 else '=None'} parts"
    yield Op(f"aten::max_pool{n}d", _pooling(n), windows=call_of("max_pool_part", most))
    if n > 1:
        yield Op(f"aten::max_pool{n}d_with_indices", _pooling(n), windows=call_of("max_pool_with_indices_part", most))
    yield Op(f"aten::avg_pool{n}d", _pooling(n), windows=call_of("avg_pool_part", mean))
    # with equal windows capture makes them the pooling above
    yield from (Op(f"aten::adaptive_{kind}_pool{n}d", _whole_space(n)) for kind in ("avg", "max"))
    copied = call_of("nearest_part", f"{n} input | output_size scale_factors parts")
    between = call_of("linear_part", f"{n} input | output_size align_corners scale_factors parts")
    yield Op(f"aten::upsample_nearest{n}d", nearest, windows=copied)
    yield Op(f"aten::upsample_{LINEAR[n]}{n}d", linear, windows=between)


def grid_sample(call: TypedCall) -> Signature:
    """Each point reads grid points around it. These vanish, so results of parts in space add up. Bicubic interpolation
    needs all of space."""
    space = axes(call.rank - 2, "g")
    if call.argument("interpolation_mode") == BICUBIC:
        space = [kept_whole(axis) for axis in space]
    points = axes(call.rank - 2, "p")
    return signature(
        [[free("b"), free("c"), *space], [free("b"), *points, whole("pair")]], [[free("b"), free("c"), *points]]
    )


GRID_SAMPLE = call_of("grid_sample_part", "input grid | interpolation_mode padding_mode align_corners places")
OPS = (
    *(op for n in SPACE for op in _of_space(n)),
    Op("aten::upsample_bicubic2d", _whole_space(2)),
    Op("aten::grid_sampler_2d", grid_sample, kernel=PartKernel(("input", (2, 3)), GRID_SAMPLE)),
    Op("aten::grid_sampler_3d", grid_sample, kernel=PartKernel(("input", (2, 3, 4)), GRID_SAMPLE)),
    Op("aten::im2col", im2col, linear_in=("self",)),
    Op("aten::col2im", col2im, linear_in=("self",)),
    Op("aten::channel_shuffle", channel_shuffle),
    Op("aten::pixel_shuffle", pixel_shuffle),
    Op("aten::pixel_unshuffle", pixel_unshuffle),
)
