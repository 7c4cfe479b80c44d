"""Which positions of an input the results of an operator read, from the operator's definition, one by one.

The rows of the operators say the same by formulas; nothing of these is used here.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from ssdsl.ir.function import Split
from ssdsl.model.graph import Operator
from ssdsl.model.ops.reader import given_arguments
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.local import Regions

Reads = tuple[frozenset[int], ...]  # for each result the positions that it reads
CONVOLUTIONS = {"conv1d": 1, "conv2d": 2, "conv3d": 3}


def windows_of(operator: Operator, split: Split) -> tuple[tuple[int, Regions], ...]:
    """The dimensions of operands that are windowed on a split one, with the run that each part needs."""
    return tuple(
        (number, tuple((run,) for _, run in parts_of(operator, split, number)))
        for number, dim in enumerate(operator.dims)
        if dim.window is not None and dim.window.of == split.dim
    )


def parts_of(operator: Operator, split: Split, number: int) -> tuple[tuple[tuple[int, int], tuple[int, int]], ...]:
    """For each part the run of results, and the run of the windowed dimension that it needs."""
    size = operator.dims[split.dim].size
    sizes = split.sizes or (size // split.parts,) * split.parts
    if sum(sizes) != size or (split.stride * split.parts not in (size, split.parts) and split.sizes is None):
        raise Wrong(Rule.NEST, "one split of a dimension that windows are on", split)
    reads = _reads(operator, number)
    found, start = [], 0
    for n in sizes:
        found.append(((start, start + n), _hull(reads[start : start + n])))
        start += n
    return tuple(found)


def _hull(reads: Iterable[frozenset[int]]) -> tuple[int, int]:
    """The shortest run with all these positions."""
    every = frozenset[int]().union(*reads)
    return (min(every), max(every) + 1) if every else (0, 0)


def _reads(operator: Operator, number: int) -> Reads:
    """What each result along a windowed dimension reads."""
    axis = next(k for k, dims in enumerate(operator.inputs[0].axes) if number in dims)
    arguments = dict(given_arguments(operator))
    size = operator.dims[number].size
    window = operator.dims[number].window
    assert window is not None
    results = operator.dims[window.of].size
    if operator.kind in CONVOLUTIONS:
        rank = CONVOLUTIONS[operator.kind]
        at = axis - (len(operator.inputs[0].axes) - rank)
        kernel_dims = operator.inputs[1].axes[2 + at]
        kernel = 1
        for d in kernel_dims:
            kernel *= operator.dims[d].size
        stride, dilation = (_of(arguments.get(name, 1), at) for name in ("stride", "dilation"))
        padding = arguments.get("padding", 0)
        if padding == "same":
            before = dilation * (kernel - 1) // 2
        else:
            before = 0 if padding == "valid" else _of(padding, at)
        return _sliding(size, results, kernel, stride, dilation, before)
    raise Wrong(Rule.FIXED, "an operator that reads windows", operator.kind)


@lru_cache(maxsize=4096)
def _sliding(size: int, results: int, kernel: int, stride: int, dilation: int, before: int) -> Reads:
    return tuple(
        frozenset(p for t in range(kernel) if 0 <= (p := k * stride - before + t * dilation) < size)
        for k in range(results)
    )


def _of(value: Any, at: int) -> int:
    """A number, or that of one axis."""
    if isinstance(value, (tuple, list)):
        return int(value[at] if len(value) > 1 else value[0])
    return int(value)
