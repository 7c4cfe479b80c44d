"""The rows of operators that work along some axes, such as sorts and Fourier transforms: these axes cannot be split.

A kernel merges the parts of running sums, of linear recurrences, and of the largest elements.
"""

import math
from collections.abc import Callable, Sequence

from ssdsl.model.dims.signature import (
    Axis,
    Letter,
    Signature,
    Windowed,
    axes,
    combined,
    free,
    signature,
    whole,
    whole_axes,
    with_axis,
)
from ssdsl.model.dims.window import Rolled
from ssdsl.model.ops.families.elementwise import broadcast
from ssdsl.model.ops.families.whole import axes_after
from ssdsl.model.ops.op import Op, PartKernel, Rule, call_of
from ssdsl.model.ops.reader import Shape, TypedCall


def along(dims_of: Callable[[TypedCall], object]) -> Rule:
    """The rule of an operator that works along the axes that `dims_of` finds: a number, several, or None for 0.

    They are the same dimensions in the results, unless their size changes.
    """

    def rule(call: TypedCall) -> Signature:
        dims = dims_of(call)
        chosen = dims if isinstance(dims, tuple) else (0 if dims is None else dims,)
        along = {int(d) % call.rank for d in chosen}
        given = [whole(a[0].name) if i in along else a for i, a in enumerate(axes(call.rank))]
        return signature([given] * len(call.inputs), [axes_after(given, call.shape, call.result)] * len(call.outputs))

    return rule


def roll(call: TypedCall) -> Signature | None:
    """A part of a rolled axis reads as many positions of the axis, some of them from its other end. Without axes the
    tensor is flattened: all are whole."""
    shifts, dims = (_numbers(call.argument(word)) for word in ("shifts", "dims"))
    if len({d % call.rank for d in dims}) != len(dims) or not dims:
        return along(lambda call: dims or tuple(range(call.rank)))(call)
    given, made = axes(call.rank), axes(call.rank)
    for shift, dim in zip(shifts, dims, strict=True):
        window = Rolled(call.shape[dim], shift)
        given[dim] = (Letter(f"a{dim % call.rank}", fixed=True, window=Windowed(f"b{dim % call.rank}", window)),)
        made[dim] = free(f"b{dim % call.rank}")
    return signature([given], [made])


def _numbers(value: object) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (int(str(value)),)


def running(call: TypedCall) -> Signature:
    """Running sums and products of elements and those before them: a part needs the totals of the parts before it."""
    names, at = axes(call.rank), call.axis("dim")
    if not names:
        return along(lambda call: call.argument("dim"))(call) or signature([], [])
    names[at] = combined(names[at][0].name)
    return signature([names], [names])


def recurrence(call: TypedCall) -> Signature:
    """States of a linear recurrence: a part needs the state before it, which follows from those of earlier parts."""
    update = call.inputs[1].shape
    at = call.axis("dim", len(update))
    names = axes(len(update))
    names[at] = combined(names[at][0].name)
    decay, _, *initial = call.shapes
    states = [_broadcast(shape, (*update[:at], *update[at + 1 :]), with_axis(names, at)) for shape in initial]
    return signature([_broadcast(decay, update, names), names, *states], [names])


def _broadcast(shape: Shape, out: Shape, names: Sequence[Axis]) -> list[Axis]:
    """The axes of a tensor that is broadcast to `out`, whose axes are these."""
    return [axis and name for axis, name in zip(broadcast(shape, out), names[len(out) - len(shape) :], strict=True)]


def largest(call: TypedCall) -> Signature:
    """The largest elements of an axis: they are among the largest of each part, so a kernel merges these."""
    names, at = axes(call.rank), int(call.argument("dim")) % max(1, call.rank)
    if not names or call.inputs[0].dtype in ("bool", "uint8"):
        return along(lambda call: call.argument("dim"))(call) or signature([], [])
    given, found = list(names), list(names)
    given[at], found[at] = combined(names[at][0].name), whole("found")
    return signature([given], [found] * len(call.outputs))


CODES = {  # of lines that are compressed (model/alter/compress.py)
    "encode": "encode({x}, dim={dim}, length={length}, k={k})",
    "decode": "decode({code}, dim={dim}, size={size}, k={k})",
}
ALONG_DIM = "cummax cummin sort argsort".split()


def _merged(kind: str, rule: Rule, words: str) -> Op:
    """The row of an operator whose kernel gets the results of all parts, and in backward the gradients of these."""
    return Op(f"aten::{kind}", rule, kernel=PartKernel(("self", "dim"), call_of(f"{kind}_parts", words)))


def histc(call: TypedCall) -> Signature:
    """A histogram over equal intervals. Histograms of parts add up, if the bounds are given and not found in data."""
    if call.argument("min") == call.argument("max"):
        return signature([whole_axes(call.rank, "a")], [[whole("bins")]])
    return signature([axes(call.rank)], [[whole("bins")]])


OPS = (
    Op("aten::histc", histc, stops_gradient=True),
    _merged("cumsum", running, "self | dim part group dtype"),
    _merged("cumprod", running, "self | dim part group dtype"),
    _merged("logcumsumexp", running, "self | dim part group"),
    Op(
        "ssdsl::linear_scan",
        recurrence,
        kernel=PartKernel(
            ("update", "dim"), call_of("linear_scan_parts", "decay update initial | dim before part group")
        ),
        flops=lambda call: 2 * math.prod(call.result),
        text="linear_scan({decay}, {update}, {initial}, dim={dim}, before={before})",
    ),
    _merged("topk", largest, "self | k dim largest start part group"),
    *(Op(f"aten::{kind}", along(lambda call: call.argument("dim"))) for kind in ALONG_DIM),
    Op("aten::flip", along(lambda call: call.argument("dims"))),
    Op("aten::roll", roll, windows=call_of("roll_part", "self | shifts dims parts"), text=".roll"),
    *(
        Op(f"aten::_fft_{kind}", along(lambda call: call.argument("dim")), linear_in=("self",))
        for kind in ("r2c", "c2c", "c2r")
    ),
    *(Op(f"aten::{kind}", along(lambda call: (-2, -1))) for kind in ("tril", "triu")),
    *(
        Op(f"ssdsl::{kind}", along(lambda call: call.argument("dim")), text=text, compiles=False)
        for kind, text in CODES.items()
    ),
)
