"""Windows: the positions of an input that each result of an operator reads, one by one, from the operator's definition.

The operators' rows say the same by formulas, which are not used here. Resampling rounds as torch does.
"""

import itertools
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from ssdsl.ir.function import OpSplit, Split
from ssdsl.ir.value import Axis, Time
from ssdsl.model.graph import Operator
from ssdsl.model.ops.reader import argument, given_arguments
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.types.local import Regions, Runs, are_all, positions

Reads = tuple[frozenset[int], ...]  # for each result, the positions that it reads

# The function of the runtime that computes a part, by the kind of the operator without the number of axes.
PARTS = {
    "conv": "conv_part",
    "conv_transpose": "conv_transpose_part",
    "max_pool": "max_pool_part",
    "max_pool_with_indices": "max_pool_with_indices_part",
    "avg_pool": "avg_pool_part",
    "upsample_nearest": "nearest_part",
    "upsample_linear": "linear_part",
    "upsample_bilinear": "linear_part",
    "upsample_trilinear": "linear_part",
    "pad": "pad_part",
    "slice": "slice_part",
    "roll": "roll_part",
    "cat": "cat_part",
    "scaled_dot_product_attention": "causal_attention_part",
    "banded_attention": "banded_attention_part",
    "attention_dropout": "attention_dropout",
}
MOVES = ("pad", "slice", "roll", "cat")
ATTENTION = ("scaled_dot_product_attention", "banded_attention", "attention_dropout")


def part_function(operator: Operator) -> str | None:
    """The function of the runtime that computes a part along a dimension that is read by windows; None if there is
    none."""
    kind, _ = _kind_and_space(operator)
    return PARTS.get(kind)


def _kind_and_space(operator: Operator) -> tuple[str, int]:
    """The kind without its number of axes, and that number: `conv_transpose` and 2 for conv_transpose2d."""
    if operator.target.startswith("ssdsl::"):
        return operator.target.removeprefix("ssdsl::"), 0
    for space in (1, 2, 3):
        if f"{space}d" in operator.kind:
            return operator.kind.replace(f"{space}d", ""), space
    return operator.kind, 0


def windows_of(operator: Operator, split: Split, splits: Sequence[OpSplit]) -> tuple[tuple[int, Regions], ...]:
    """The dimensions that are windowed on a split one, each with the run that every part needs."""
    return tuple((number, _needs(operator, split, number)) for number in windowed_on(operator, split, splits))


def windowed_on(operator: Operator, split: Split, splits: Sequence[OpSplit]) -> Iterator[int]:
    """Yields the dimensions of which a part along a split reads windows: of keys that splits cut, a part has all that
    these splits leave it, whatever its queries are."""
    for number, dim in enumerate(operator.dims):
        is_cut = any(number in other.dims for other in splits if isinstance(other, Split))
        if dim.window is not None and dim.window.of == split.dim and not is_cut:
            yield number


def _needs(operator: Operator, split: Split, number: int) -> Regions:
    """The runs of a windowed dimension that every part needs: one, except of a rolled axis and of keys, of which it
    needs no more than it reads."""
    parts = parts_of(operator, split, number)
    is_apart = isinstance(split.coordinate, Axis) and not is_inside(operator, split)
    if is_apart and _kind_and_space(operator)[0] in ATTENTION:
        reads = _reads(operator, number)
        hulls = ([_hull(reads[p] for p in range(*run)) for run in runs] for runs, _ in parts)
        return tuple(map(_joined, hulls))
    if operator.target.partition(".")[0] != "aten::roll":
        return tuple((run,) for _, run in parts)
    reads = _reads(operator, number)
    return tuple(_runs(frozenset[int]().union(*(reads[p] for p in positions(runs)))) for runs, _ in parts)


def _runs(places: frozenset[int]) -> Runs:
    """The positions as runs."""
    starts = sorted(p for p in places if p - 1 not in places)
    return tuple(zip(starts, sorted(p + 1 for p in places if p + 1 not in places), strict=True))


def _joined(runs: Iterable[tuple[int, int]]) -> Runs:
    """The runs in order; those that overlap or touch are one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(runs):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return tuple(found)


def is_inside(operator: Operator, split: Split) -> bool:
    """Whether a split cuts the parts of another one, in attention: its parts may be given more keys than they need."""
    within = split.digit.at is None and split.digit.period < operator.dims[split.dim].size
    return within and _kind_and_space(operator)[0] in ATTENTION


def parts_of(operator: Operator, split: Split, number: int) -> tuple[tuple[Runs, tuple[int, int]], ...]:
    """For each part, the runs of its results, and the run of the windowed dimension that it needs."""
    size = operator.dims[split.dim].size
    if is_inside(operator, split):
        return ((((0, size),), (0, operator.dims[number].size)),) * split.digit.parts
    each = size // split.digit.parts
    at = split.digit.at or tuple(((k * each, k * each + each),) for k in range(split.digit.parts))
    if not are_all(at, size) or (split.digit.period not in (size, split.digit.parts) and split.digit.at is None):
        raise Wrong(Rule.NEST, "one split of a dimension that windows are on", split)
    if any(len(runs) != 1 for runs in at) and _kind_and_space(operator)[0] not in ATTENTION:
        raise Wrong(Rule.KERNEL, "parts that are runs", split)
    reads = _reads(operator, number)
    if isinstance(split.coordinate, Time) and _kind_and_space(operator)[0] in ATTENTION:
        reads = _in_time(reads)
    return tuple((runs, _hull(reads[p] for p in positions(runs))) for runs in at)


def _in_time(reads: Reads) -> Reads:
    """The positions that parts are given that run one after another: if no query sees keys behind its own, all those
    in front of it, because they are there."""
    is_behind = any(max(own) > k for k, own in enumerate(reads))
    return reads if is_behind else tuple(frozenset((0, k)) for k in range(len(reads)))


def _hull(reads: Iterable[frozenset[int]]) -> tuple[int, int]:
    """The shortest run with all these positions."""
    every = frozenset[int]().union(*reads)
    return (min(every), max(every) + 1) if every else (0, 0)


def _reads(operator: Operator, number: int) -> Reads:
    """The positions of a windowed dimension that each result reads."""
    window = operator.dims[number].window
    assert window is not None
    size, results = operator.dims[number].size, operator.dims[window.of].size
    if _kind_and_space(operator)[0] in ATTENTION:
        return _around(operator, number, window.of)
    if operator.target.startswith("aten::") and operator.kind in MOVES:
        return _moved(operator, number, window.of)
    axes = operator.inputs[0].axes
    kind, space = _kind_and_space(operator)
    at = next(k for k, dims in enumerate(axes) if number in dims) - (len(axes) - space)
    if kind not in PARTS or [*operator.outputs[0].axes[at - space]] != [window.of]:
        raise Wrong(Rule.FIXED, "an operator that reads windows along the axis of its results", operator.kind)
    arguments = given_arguments(operator)
    if kind.startswith("upsample"):
        factors = arguments.get("scale_factors")
        if kind == "upsample_nearest":
            return _copied(size, results, factors and factors[at])
        return _between(size, results, bool(arguments.get("align_corners")), factors and factors[at])
    stride, padding, step = (_of(arguments.get(name) or None, at, default) for name, default in SLIDING.items())
    if kind.startswith("conv"):
        kernel = 1
        for d in operator.inputs[1].axes[2 + at]:
            kernel *= operator.dims[d].size
        if arguments.get("padding") == "same":
            padding = step * (kernel - 1) // 2
    else:
        kernel = _of(arguments["kernel_size"], at, 0)
        stride = _of(arguments.get("stride") or kernel, at, 1)
    if kind == "conv_transpose":
        return _spread(size, results, kernel, stride, step, padding)
    return _sliding(size, results, kernel, stride, step, padding)


def _around(operator: Operator, keys: int, queries: int) -> Reads:
    """The reads of attention in a band: query k sees the keys k - before to k + after, and all in front of it if it is
    causal. Only the first and the last are listed: a query sees its own key, so a run of them sees the hull."""
    query, key, value = (operand.axes[-2] for operand in operator.inputs[:3])
    dims, arguments, size = operator.dims, given_arguments(operator), operator.dims[keys].size
    before, after = (size, 0) if arguments["is_causal"] else arguments.get("band") or (-1, -1)
    is_square = size == dims[queries].size and min(before, after) >= 0
    if not is_square or ((queries,), (keys,), (keys,)) != (query, key, value):
        raise Wrong(Rule.FIXED, "attention of as many queries as keys, causal or in a band", operator.kind)
    return _in_band(size, before, after)


@lru_cache(maxsize=16)
def _in_band(size: int, before: int, after: int) -> Reads:
    return tuple(frozenset((max(0, k - before), min(size - 1, k + after))) for k in range(size))


def place_of(operator: Operator, number: int) -> tuple[int, int]:
    """The first operand that has a dimension, and its axis there."""
    return next((k, at) for k, o in enumerate(operator.inputs) for at, dims in enumerate(o.axes) if number in dims)


def _moved(operator: Operator, number: int, of: int) -> Reads:
    """The reads of an operator that moves elements along one axis: each result is one position of the operand, or none
    of it."""
    operand, axis = place_of(operator, number)
    size, results, rank = operator.dims[number].size, operator.dims[of].size, len(operator.outputs[0].axes)
    if [*operator.outputs[0].axes[axis]] != [of] or [*operator.inputs[operand].axes[axis]] != [number]:
        raise Wrong(Rule.FIXED, "an operator that moves elements along the axis of its results", operator.kind)
    along = {"pad": axis, "roll": axis}.get(operator.kind, int(argument(operator, "dim") or 0) % rank)
    places: Sequence[int]
    if operator.kind == "pad":
        places = _padded(operator, rank - 1 - axis, size)
    elif operator.kind == "roll":
        shifts, dims = (_listed(argument(operator, word)) for word in ("shifts", "dims"))
        places = [
            (k - sum(s for s, d in zip(shifts, dims, strict=True) if d % rank == axis)) % size for k in range(size)
        ]
    elif operator.kind == "slice":
        places = range(size)[slice(*(argument(operator, name) for name in ("start", "end", "step")))]
    else:
        lengths = [math.prod(operator.dims[d].size for d in o.axes[axis]) for o in operator.inputs]
        places = [p if k == operand else -1 for k, length in enumerate(lengths) for p in range(length)]
    if along != axis or len(places) != results:
        raise Wrong(Rule.FIXED, "an operator that moves elements along this axis", operator.kind)
    return tuple(frozenset({p} if 0 <= p < size else ()) for p in places)


def _listed(numbers: Any) -> list[int]:
    return [*numbers] if isinstance(numbers, (tuple, list)) else [int(numbers)]


def _padded(operator: Operator, from_last: int, size: int) -> range:
    """The place of each result of a padding with a constant; those outside of the operand are padding."""
    amounts = argument(operator, "pad")
    if argument(operator, "mode") != "constant" or len(amounts) < 2 * from_last + 2:
        raise Wrong(Rule.FIXED, "a padding with a constant along this axis", operator.kind)
    front, behind = amounts[2 * from_last : 2 * from_last + 2]
    return range(-front, size + behind)


SLIDING = {"stride": 1, "padding": 0, "dilation": 1}  # the arguments of sliding windows, with their defaults


@lru_cache(maxsize=4096)
def _sliding(size: int, results: int, kernel: int, stride: int, dilation: int, before: int) -> Reads:
    return tuple(
        frozenset(p for t in range(kernel) if 0 <= (p := k * stride - before + t * dilation) < size)
        for k in range(results)
    )


@lru_cache(maxsize=4096)
def _spread(size: int, results: int, kernel: int, stride: int, dilation: int, before: int) -> Reads:
    """The reads of a transposed convolution: the inputs that add to each result."""
    found: list[set[int]] = [set() for _ in range(results)]
    for k, t in itertools.product(range(size), range(kernel)):
        if 0 <= (p := k * stride - before + t * dilation) < results:
            found[p].add(k)
    return tuple(map(frozenset, found))


@lru_cache(maxsize=4096)
def _copied(size: int, results: int, factor: float | None) -> Reads:
    """The reads of nearest upsampling: the one position that a result copies. Torch multiplies in single precision."""
    scale = _single(1 / factor) if factor else _single(size / results)
    return tuple(frozenset({min(size - 1, int(_single(k * scale)))}) for k in range(results))


def _single(number: float) -> float:
    """The nearest number in single precision."""
    (found,) = struct.unpack("f", struct.pack("f", number))
    return float(found)


@lru_cache(maxsize=4096)
def _between(size: int, results: int, align_corners: bool, factor: float | None) -> Reads:
    """The reads of linear upsampling: a result at an exact place is a mean of the positions nearer to it than one."""
    found = []
    for k in range(results):
        if align_corners:
            place = Fraction(k * (size - 1), results - 1) if results > 1 else Fraction(0)
        else:
            place = (2 * k + 1) / (2 * Fraction(factor)) if factor else Fraction((2 * k + 1) * size, 2 * results)
            place -= Fraction(1, 2)
        place = Fraction(k) if size == results else min(max(place, Fraction(0)), Fraction(size - 1))
        near = range(int(place), min(size, int(place) + 2))
        found.append(frozenset(p for p in near if abs(p - place) < 1))
    return tuple(found)


def _of(value: Any, at: int, default: int) -> int:
    """An argument's number for one axis; the default if it is None or a word such as "valid"."""
    if isinstance(value, (tuple, list)):
        return int(value[at] if len(value) > 1 else value[0])
    return default if value is None or isinstance(value, str) else int(value)
