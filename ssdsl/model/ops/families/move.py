"""The rows of operators that regroup, reorder, join or repeat elements and compute nothing."""

from ssdsl.model.dims.signature import (
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
    with_axis,
)
from ssdsl.model.dims.window import Moved, Window
from ssdsl.model.ops.families.elementwise import broadcast
from ssdsl.model.ops.op import Op, PartKernel, call_of, regroup
from ssdsl.model.ops.reader import TypedCall


def transpose(call: TypedCall) -> Signature:
    names = axes(call.rank)
    a, b = (int(d) % len(names) for d in (call.args[1:3] or (0, -1)))
    out = list(names)
    out[a], out[b] = out[b], out[a]
    return signature([names], [out])


def permute(call: TypedCall) -> Signature:
    names = axes(call.rank)
    return signature([names], [[names[d] for d in call.args[1]]])


def as_bytes(call: TypedCall) -> Signature:
    """The same bytes as numbers of another dtype; if that has another width, the last axis changes its size."""
    names = axes(call.rank)
    if call.shape == call.result:
        return signature([names], [names])
    return signature([[*names[:-1], whole("before")]], [[*names[:-1], whole("after")]])


def expand(call: TypedCall) -> Signature:
    return signature([broadcast(call.shape, call.result)], [axes(len(call.result))])


def select(call: TypedCall) -> Signature:
    """One position of an axis: the axis vanishes. One part has it, and the others give zeros: the parts add up."""
    return _picked(call, is_whole=not _reads_few(call))


def unbind(call: TypedCall) -> Signature:
    """All positions of an axis, each as a result: the axis is whole, because to gather it once costs less than to sum
    each position."""
    return _picked(call, is_whole=True)


def _picked(call: TypedCall, *, is_whole: bool) -> Signature:
    names, at = axes(call.rank), call.axis("dim")
    given = with_axis(names, at, kept_whole(names[at])) if is_whole else names
    return signature([given], [with_axis(names, at)] * len(call.outputs))


def _reads_few(call: TypedCall) -> bool:
    """Whether the model selects at most half of the axis, and its parts add up, which those of truth values do not.

    A ring sends twice as much for the sum of a position as for gathering it: for more positions, gathering the axis
    once sends less.
    """
    at, given = call.axis("dim"), call.inputs[0]
    calls = (other for other in (call.call, *call.alike) if int(other.argument("dim")) % call.rank == at)
    positions = {int(other.argument("index")) % given.shape[at] for other in calls}
    return given.dtype != "bool" and 2 * len(positions) <= given.shape[at]


def pad(call: TypedCall) -> Signature:
    """Padded axes are new ones in the result. A part of it reads what is not padding, a window of the input; copies of
    the border, or of what is on the other side, need the whole axis. The amounts are given in pairs, the last axis
    first."""
    amounts, is_constant = call.args[1], call.argument("mode") == "constant"
    given, out = axes(call.rank), axes(call.rank)
    for i in range(0, len(amounts), 2):
        at = call.rank - 1 - i // 2
        if any(amounts[i : i + 2]):
            window = Moved(call.shape[at], before=amounts[i]) if is_constant else None
            given[at], out[at] = _moved(at, window)
    return signature([given], [out])


def _moved(at: int, window: Window | None) -> tuple[Axis, Axis]:
    """The axis of an input and that of a result that reads it by a window; both are whole if it does not."""
    if window is None:
        return whole(f"a{at}"), whole(f"b{at}")
    return (Letter(f"a{at}", fixed=True, window=Windowed(f"b{at}", window)),), free(f"b{at}")


def slice_(call: TypedCall) -> Signature:
    """A run of an axis, or one position of each `step`. If it takes most of the axis, a part of the result reads a
    window; a short one is computed whole."""
    names, at = axes(call.rank), call.axis("dim")
    size, kept = call.shape[at], call.result[at]
    if size == kept:
        return signature([names], [names])
    start, step = int(call.argument("start") or 0), int(call.argument("step"))
    first = max(0, start + size) if start < 0 else start
    given, out = _moved(at, Moved(size, -first, step) if 2 * kept > size else None)
    return signature([with_axis(names, at, given)], [with_axis(names, at, out)])


def repeat(call: TypedCall) -> Signature:
    """A repeated axis is repetitions x the axis before, and the latter may be split."""
    names, times = axes(call.rank), call.args[1]
    new = len(times) - len(names)
    out = [whole(f"r{i}") for i in range(new)]
    pairs = zip(names, times[new:], strict=True)
    out += [n if k == 1 else (*whole(f"r{i}", k), *n) for i, (n, k) in enumerate(pairs, new)]
    return signature([names], [out])


def diagonal(call: TypedCall) -> Signature:
    names = axes(call.rank)
    gone = {call.axis("dim1"), call.axis("dim2")}
    given = [kept_whole(n) if i in gone else n for i, n in enumerate(names)]
    return signature([given], [[*(n for i, n in enumerate(names) if i not in gone), whole("diagonal")]])


def unfold(call: TypedCall) -> Signature:
    """Windows along one axis, each as a new last axis."""
    names, at = axes(call.rank), call.axis("dimension")
    given = with_axis(names, at, kept_whole(names[at]))
    return signature([given], [[*with_axis(names, at, whole(f"windows{at}")), whole("inside")]])


def cat(call: TypedCall) -> Signature:
    """The joined axis is whole, unless one tensor is more than twice as long as all others together: these are its
    border, of which each part is given all, and the part reads a window of the long one. An empty vector may be joined
    to tensors of any rank, and adds nothing.

    Batches of one size, joined along the first axis: it is batches x the size of one, and the latter may be split.
    """
    rank = len(call.result)
    names, at = axes(rank), call.axis("dim", rank)
    if at == 0 and len(set(call.shapes)) == 1:  # halves of a head, which rotation joins, remain one dimension
        joined = (*whole("which", len(call.inputs)), *names[at])
        return signature([names] * len(call.inputs), [with_axis(names, at, joined)])
    parts, joined = whole_axes(len(call.inputs), "p"), whole("joined")
    if all(len(s) == rank for s in call.shapes):
        sizes = [s[at] for s in call.shapes]
        if 3 * sizes[most := sizes.index(max(sizes))] > 2 * call.result[at]:
            window = Moved(sizes[most], before=sum(sizes[:most]))
            parts[most], joined = _moved(most, window)
    rows = [with_axis(names, at, p) if len(s) == rank else [p] for p, s in zip(parts, call.shapes, strict=True)]
    return signature(rows, [with_axis(names, at, joined)])


def stack(call: TypedCall) -> Signature:
    names, at = axes(call.rank), call.axis("dim", call.rank + 1)
    return signature([names] * len(call.inputs), [[*names[:at], whole("which"), *names[at:]]])


def split(call: TypedCall) -> Signature:
    """Equal parts: the axis is parts x the size of a part, and the latter may be split. Unequal ones: it is whole."""
    names, at = axes(call.rank), call.axis("dim")
    if len({t.shape[at] for t in call.outputs}) > 1:
        outs = [with_axis(names, at, whole(f"p{k}")) for k in range(len(call.outputs))]
        return signature([with_axis(names, at, kept_whole(names[at]))], outs)
    given = with_axis(names, at, (*whole("which", len(call.outputs)), *names[at]))
    return signature([given], [names] * len(call.outputs))


def glu(call: TypedCall) -> Signature:
    """One half of an axis gates the other: the axis is 2 x the rest, and the rest may be split."""
    names, at = axes(call.rank), call.axis("dim")
    return signature([with_axis(names, at, (*whole("half", 2), *names[at]))], [names])


SELECT_PART = PartKernel(("self", "dim"), call_of("select_part", "self | dim index start size"))

REGROUPINGS = "view _unsafe_view reshape flatten unflatten squeeze unsqueeze".split()  # all become `reshape`

OPS = (
    *(Op(f"aten::{kind}", regroup, linear_in=("self",), regroups=True) for kind in REGROUPINGS),
    Op("aten::view.dtype", as_bytes, stops_gradient=True),
    Op("aten::view_as_real", "... -> ... pair!", regroups=True),
    Op("aten::view_as_complex", "... pair! -> ...", regroups=True),
    Op("aten::transpose", transpose, linear_in=("self",), text=".transpose", regroups=True),
    Op("aten::t", transpose, linear_in=("self",), regroups=True),
    Op("aten::permute", permute, linear_in=("self",), text=".permute", regroups=True),
    Op("aten::select", select, linear_in=("self",), kernel=SELECT_PART, text=".select", regroups=True),
    Op("aten::unbind", unbind, linear_in=("self",), text=".unbind", regroups=True),
    Op("aten::split", split, regroups=True),
    Op("aten::split_with_sizes", split, regroups=True),
    Op("aten::expand", expand, linear_in=("self",)),
    Op("aten::pad", pad, windows=call_of("pad_part", "self pad | value parts")),
    Op("aten::slice", slice_, windows=call_of("slice_part", "self | dim step parts")),
    Op("aten::repeat", repeat),
    Op("aten::diagonal", diagonal),
    Op("aten::unfold", unfold),
    Op("aten::clone", "... -> ...", linear_in=("self",), saved="", fresh=True, text=".clone"),
    Op("aten::cat", cat, linear_in=("tensors",), windows=call_of("cat_part", "tensors | dim parts")),
    Op("aten::stack", stack, linear_in=("tensors",)),
    Op("aten::glu", glu),
)
