"""The memory of values in the program of the unsplit model; a part of a tensor is laid out like the whole.

A view (a transpose, a slice, most reshapes) costs nothing, and keeping it keeps all of the tensor that it is a view of.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ssdsl.record import Record

if TYPE_CHECKING:
    from ssdsl.model.graph import Operator


class Storage(Record):
    """The memory of a value: that of `root`, the value itself or the one that it is a view of; strides in elements."""

    root: str
    strides: tuple[int, ...]


def aliases(operator: "Operator", places: Mapping[str, Storage]) -> dict[str, str]:
    """The outputs that are views, each with the input that it is a view of."""
    inputs = {places[o.value].root: o.value for o in reversed(operator.inputs)}
    roots = {o.value: places[o.value].root for o in operator.outputs}
    return {output: inputs[root] for output, root in roots.items() if root in inputs}


def local_strides(whole: Sequence[int], strides: Sequence[int], part: Sequence[int]) -> tuple[int, ...]:
    """The strides of a part that is laid out like the whole: cutting an axis shrinks the strides of those around it.

    >>> local_strides((2, 8, 4), (32, 4, 1), (2, 4, 4))  # heads cut in two
    (16, 4, 1)
    >>> local_strides((2, 4, 8), (32, 1, 4), (2, 4, 4))  # the same, transposed
    (16, 1, 4)
    """
    found = []
    for stride in strides:
        for other, n, m in zip(strides, whole, part, strict=True):
            if 0 < other < stride and n:
                stride = -(-stride * m // n)
        found.append(stride)
    return tuple(found)


def is_plain(order: Sequence[int]) -> bool:
    """Whether a tensor in this order is contiguous."""
    return tuple(order) == tuple(range(len(order)))


def strides_in(order: Sequence[int], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a tensor without gaps whose axes lie in memory in this order.

    >>> strides_in((0, 2, 1), (2, 3, 4))
    (12, 1, 3)
    """
    strides, inner = {}, 1
    for axis in reversed(order):
        strides[axis] = inner
        inner *= max(1, shape[axis])
    return tuple(strides[axis] for axis in range(len(shape)))
