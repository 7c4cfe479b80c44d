"""Convolutions, pooling and resampling."""

import math
from typing import Any

from ssdsl.model.graph import Ref
from ssdsl.model.ops.op import Op, Rule
from ssdsl.model.ops.typed_call import Shape, TypedCall
from ssdsl.model.signature import (
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
from ssdsl.model.window import Sliding

SPACE = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}  # by the number of axes
IN, OUT = free("channels"), free("channels'")  # two dimensions of one role, of which a prime tells one apart


def convolution(call: TypedCall) -> Signature:
    """Space is split by the results; a patch embedding (stride = kernel) has them as a factor of what it reads."""
    x, w = call.shapes[:2]
    rank = len(w) - 2
    stride, padding, dilation = (_tuple(call.argument(n), rank) for n in ("stride", "padding", "dilation"))
    patches = stride == w[2:] and set(padding) <= {0, "valid"} and set(dilation) == {1}
    patches = patches and all(n % k == 0 for n, k in zip(x[-rank:], w[2:], strict=True))
    words = SPACE[rank]
    if patches:
        kernel = [whole(f"kernel_{word}", n) for word, n in zip(words, w[2:], strict=True)]
        space = [(*free(word), *inside) for word, inside in zip(words, kernel, strict=True)]
        return _convolved(call, x, OUT, IN, space, kernel, [free(word) for word in words])
    return _convolved(call, x, OUT, IN, *_sliding(call))


def transposed_convolution(call: TypedCall) -> Signature:
    x, w = call.shapes[:2]
    rank = len(w) - 2
    return _convolved(call, x, IN, OUT, *_windows(x[-rank:], call.result[-rank:]))


def _sliding(call: TypedCall) -> tuple[list[Axis], list[Axis], list[Axis]]:
    """The axes of space of a convolution: of the input, windowed on those of the result; of the kernel, whole."""
    x, w = call.shapes[:2]
    rank = len(w) - 2
    stride, dilation = (_tuple(call.argument(n), rank) for n in ("stride", "dilation"))
    given, kernel, new = list[Axis](), list[Axis](), list[Axis]()
    for at, word in enumerate(SPACE[rank]):
        size, span = x[at - rank], dilation[at] * (w[2 + at] - 1) + 1
        window = Sliding(size, stride[at], _before(call.argument("padding"), rank, at, span), span)
        new.append(free(f"{word}'"))
        kernel.append(whole(f"kernel_{word}"))
        given.append((Letter(word, fixed=True, window=Windowed(f"{word}'", window)),))
    return given, kernel, new


def _before(padding: Any, rank: int, at: int, span: int) -> int:
    """The padding in front of an axis; "same" puts the odd one behind."""
    if padding == "same":
        return (span - 1) // 2
    return 0 if padding == "valid" else int(_tuple(padding, rank)[at])


def _windows(before: Shape, after: Shape) -> tuple[list[Axis], list[Axis], list[Axis]]:
    """The axes of space: of what is given, of the kernel and of the result, all whole; one of another size is new."""
    words = SPACE[len(before)]
    given, kernel, new = ([whole(form.format(word)) for word in words] for form in ("{}", "kernel_{}", "{}'"))
    return given, kernel, [a if n == m else b for a, b, n, m in zip(given, new, before, after, strict=True)]


def _convolved(
    call: TypedCall, x: Shape, first: Axis, second: Axis, space: list[Axis], kernel: list[Axis], out: list[Axis]
) -> Signature:
    """`first` and `second` are the channels of the weight's axes; a bias has those of the output."""
    given, made = IN, OUT
    if call.argument("groups") != 1:  # the weight has the channels of one group
        given, first, second, made = kept_whole(given), kept_whole(first), whole("g"), kept_whole(made)
    batch = [free("b")] if len(x) == len(space) + 2 else []
    rows = [[*batch, given, *space], [first, second, *kernel]]
    if isinstance(call.argument("bias"), Ref):
        rows.append([made])
    return signature(rows, [[*batch, made, *out]], addends=(2,))


def _tuple(value: Any, rank: int) -> tuple[Any, ...]:
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return values * rank if len(values) == 1 else values


def _spatial(count: int) -> Rule:
    """Pooling and resampling: batch and channels are free, the last `count` axes, those of space, are whole."""

    def rule(call: TypedCall) -> Signature:
        kept = axes(call.rank - count)
        given, _, made = _windows(call.shape[-count:], call.result[-count:])
        return signature([[*kept, *given]], [[*kept, *made]] * len(call.outputs))

    return rule


def pixel_shuffle(call: TypedCall) -> Signature:
    small, large = _pixels(call, int(call.args[1]))
    return signature([small], [large])


def pixel_unshuffle(call: TypedCall) -> Signature:
    small, large = _pixels(call, int(call.args[1]))
    return signature([large], [small])


def _pixels(call: TypedCall, r: int) -> tuple[list[Axis], list[Axis]]:
    """An image with r² times the channels, and the one that is r times as high and wide."""
    down, right, batch = whole("r", r), whole("q", r), axes(call.rank - 3)
    small = [*batch, (*free("c"), *down, *right), free("h"), free("w")]
    return small, [*batch, free("c"), (*free("h"), *down), (*free("w"), *right)]


def _flops(call: TypedCall) -> int:
    """Each output meets a kernel of every channel."""
    return 2 * math.prod(call.result) * math.prod(call.shapes[1][1:])


def _transposed_flops(call: TypedCall) -> int:
    """Each input meets a kernel of every channel."""
    return 2 * math.prod(call.shape) * math.prod(call.shapes[1][1:])


POOLS = "max_pool{0}d avg_pool{0}d adaptive_avg_pool{0}d adaptive_max_pool{0}d upsample_nearest{0}d"
OTHERS = {"max_pool2d_with_indices": 2, "upsample_linear1d": 1, "upsample_bilinear2d": 2, "upsample_bicubic2d": 2}
SPATIAL = {name: n for n in (1, 2, 3) for name in POOLS.format(n).split()} | OTHERS | {"upsample_trilinear3d": 3}


def channel_shuffle(call: TypedCall) -> Signature:
    """Channels in groups, and the same with the groups innermost."""
    groups, space = whole("groups", int(call.args[1])), axes(call.rank - 2, "x")
    return signature(
        [[free("b"), (*groups, *free("c")), *space]],
        [[free("b"), (*free("c"), *groups), *space]],
    )


def im2col(call: TypedCall) -> Signature:
    """Windows of an image as columns: a channel's are next to each other."""
    batch, columns = _columns(call, call.shape, call.result)
    return signature([[*batch, free("c"), *whole_axes(2, "x")]], [columns])


def col2im(call: TypedCall) -> Signature:
    """Windows added to an image."""
    batch, columns = _columns(call, call.result, call.shape)
    return signature([columns], [[*batch, free("c"), *whole_axes(2, "x")]])


def _columns(call: TypedCall, image: Shape, columns: Shape) -> tuple[list[Axis], list[Axis]]:
    batch = [free("b")] if len(image) == 4 else []
    return batch, [*batch, (*free("c"), *whole("kernel", columns[-2] // image[-3])), whole("windows")]


CONVOLUTION = "conv_part({input}, {weight}, {bias}, {stride}, {padding}, {dilation}, {groups}, {parts})"

OPS = (
    *(
        Op(
            f"aten::conv{n}d",
            convolution,
            windows=CONVOLUTION,
            contraction=True,
            fresh=True,
            flops=_flops,
            text=f"F.conv{n}d",
        )
        for n in (1, 2, 3)
    ),
    *(
        Op(f"aten::conv_transpose{n}d", transposed_convolution, contraction=True, fresh=True, flops=_transposed_flops)
        for n in (1, 2, 3)
    ),
    *(Op(f"aten::{name}", _spatial(count)) for name, count in SPATIAL.items()),
    Op("aten::grid_sampler_2d", "b c h! w!, b y x pair! -> b c y x"),
    Op("aten::grid_sampler_3d", "b c d! h! w!, b z y x pair! -> b c z y x"),
    Op("aten::im2col", im2col, linear_in=("self",)),
    Op("aten::col2im", col2im, linear_in=("self",)),
    Op("aten::channel_shuffle", channel_shuffle),
    Op("aten::pixel_shuffle", pixel_shuffle),
    Op("aten::pixel_unshuffle", pixel_unshuffle),
)
