"""Rewrites indices that count along an axis: `x[arange(batch), last]` takes one element of each row.

As an index by two tensors it needs the whole batch. As a gather along the other axis it splits by rows: with x [batch,
seq, class] and last [batch], it is gather(x, 1, last as [batch, 1, class]), of shape [batch, 1, class].
"""

import math
from collections.abc import Sequence

import torch

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.capture import Capture
from ssdsl.model.graph import Ref
from ssdsl.model.rewrite.calls import inline
from ssdsl.model.rewrite.constants import known_numbers
from ssdsl.record import Record

Tensor = torch.Tensor


class _Aligned(Record):
    """An indexed tensor of `shape`: `axes[dim]` is the axis of the index that counts along `dim`, `along` the one other
    indexed dimension, `index` its index, and `full` the shape of all indices together. The axes of the index stand in
    x[i, j] behind `first` of the kept dimensions.

    An axis of x[i, j] is the number of an axis of the index, or ~dim for a dimension that is kept. For x [4, 8, 3] and
    x[arange(4), last]:

    >>> rows = _Aligned((4, 8, 3), {0: 0}, along=1, index="last", full=(4,), first=0)
    >>> rows.by_result(), rows.taken()    # the result [4, 3], and the gather's index [4, 1, 3]
    ([0, -3], [4, 1, 3])
    """

    shape: tuple[int, ...]
    axes: dict[int, int]
    along: int
    index: str
    full: tuple[int, ...]
    first: int

    def of(self, dim: int) -> list[int]:
        """The axes of x[i, j] that stand for a dimension."""
        if dim == self.along:
            return [a for a in range(len(self.full)) if a not in self.axes.values()]
        return [self.axes.get(dim, ~dim)]

    def by_dimension(self) -> list[int]:
        """The axes in the order of the dimensions that they stand for."""
        return [axis for dim in range(len(self.shape)) for axis in self.of(dim)]

    def by_result(self) -> list[int]:
        """The axes in the order of x[i, j], where those of the index stand together."""
        kept = [~d for d in range(len(self.shape)) if d not in (*self.axes, self.along)]
        return [*kept[: self.first], *range(len(self.full)), *kept[self.first :]]

    def size(self, axis: int) -> int:
        return self.full[axis] if axis >= 0 else self.shape[~axis]

    def taken(self, *, kept: bool = True) -> list[int]:
        """The shape of the gather's index: kept dimensions have their size if `kept`, else size one."""
        axes = (self.of(d) for d in range(len(self.shape)))
        return [math.prod(self.size(a) for a in of if kept or a >= 0) for of in axes]


def aligned_index(call: CapturedCall, capture: Capture) -> list[CapturedCall]:
    """Calls in place of x[i, j]: a gather, if all but one index count along an axis of the indices.

    x[arange(n)] becomes a reshape of x, a repeated arange an expand.
    """
    x, shape = call.args[0], capture.tensors[call.outputs[0]].shape
    if (times := _repeated(call, capture)) is not None:
        return inline(lambda x: _repeat(x, *times).reshape(shape), call, capture, (x,))
    if (found := _aligned(call, capture)) is None:
        return [call]

    def gather(x: Tensor, index: Tensor) -> Tensor:
        rows = x.gather(found.along, _index(index, found))
        apart = rows.reshape([found.size(a) for a in found.by_dimension()])
        return _permuted(apart, found.by_dimension(), found.by_result())

    return inline(gather, call, capture, (x, Ref(found.index)))


def _repeat(x: Tensor, dim: int, whole: int, each: int) -> Tensor:
    """x[index], for an index that repeats each number of a dimension `each` times, and the whole `whole` times. The
    repetitions are axes of their own here."""
    if whole == each == 1:
        return x
    before, count, after = x.shape[:dim], x.shape[dim], x.shape[dim + 1 :]
    row = x.reshape(*before, 1, count, 1, *after)
    return row.expand(*before, whole, count, each, *after)


def aligned_index_put(call: CapturedCall, capture: Capture) -> list[CapturedCall]:
    """Calls in place of a write to x[i, j]: a scatter, if all but one index count along an axis of the indices."""
    found = _aligned(call, capture)
    if found is None:
        return [call]

    def scatter(x: Tensor, index: Tensor, values: Tensor) -> Tensor:
        wide = values.expand([found.size(a) for a in found.by_result()])
        turned = _permuted(wide, found.by_result(), found.by_dimension())
        source = turned.reshape(found.taken())
        places = _index(index, found)
        if call.argument("accumulate"):
            return x.scatter_add(found.along, places, source)
        return x.scatter(found.along, places, source)

    return inline(scatter, call, capture, (call.args[0], Ref(found.index), call.args[2]))


def _index(index: Tensor, found: _Aligned) -> Tensor:
    """The index of the gather, in the shape of its result; negative indices are counted from the start."""
    index = index % found.shape[found.along]
    full = index.expand(found.full)
    ordered = _permuted(full, range(len(found.full)), [a for a in found.by_dimension() if a >= 0])
    thin = ordered.reshape(found.taken(kept=False))
    return thin if list(thin.shape) == found.taken() else thin.expand(found.taken())


def _permuted(x: Tensor, given: Sequence[int], wanted: Sequence[int]) -> Tensor:
    """The tensor with its axes, which are those `given`, in another order."""
    order = [given.index(axis) for axis in wanted]
    return x if order == sorted(order) else x.permute(order)


# -- which indices count -----------------------------------------------------------------------------------------------


def _aligned(call: CapturedCall, capture: Capture) -> _Aligned | None:
    """The form of a call's index, if all but one of its indices count along an axis; else None."""
    indices = {d: i.value for d, i in enumerate(call.args[1]) if i is not None}
    tensors = [capture.tensors[v] for v in indices.values()]
    shape = capture.tensors[call.args[0].value].shape
    if any(t.dtype not in ("int64", "int32") for t in tensors):
        return None
    full = tuple(torch.broadcast_shapes(*(t.shape for t in tensors)))  # type: ignore[no-untyped-call]
    calls = capture.makers()
    axes: dict[int, int] = {}
    others: list[int] = []
    for dim, value in indices.items():
        axis = _counted(known_numbers(value, calls, capture), full, shape[dim])
        if axis is None or axis in axes.values():
            others.append(dim)
        else:
            axes[dim] = axis
    if not axes or len(others) != 1:
        return None
    places = list(indices)
    first = places[0] if places[-1] - places[0] == len(places) - 1 else 0
    return _Aligned(shape, axes, others[0], indices[others[0]], full, first)


def _repeated(call: CapturedCall, capture: Capture) -> tuple[int, int, int] | None:
    """(dim, whole, 1) if the only index, that of a dimension, is `arange(n).repeat(whole)`, (dim, 1, each) if it is
    `arange(n).repeat_interleave(each)`.

    It may have any shape. None for other indices.
    """
    given = {dim: index.value for dim, index in enumerate(call.args[1]) if index is not None}
    (dim, value), *others = given.items()
    count = capture.tensors[call.args[0].value].shape[dim]
    index = None if others else known_numbers(value, capture.makers(), capture)
    if index is None or index.dtype not in (torch.int64, torch.int32) or not count or index.numel() % count:
        return None
    times, counted = index.numel() // count, torch.arange(count)
    if torch.equal(index.flatten(), counted.repeat_interleave(times)):
        return dim, 1, times
    return (dim, times, 1) if times and torch.equal(index.flatten(), counted.repeat(times)) else None


def _counted(index: torch.Tensor | None, full: tuple[int, ...], size: int) -> int | None:
    """The axis along which an index is 0, 1, ... size - 1, constant along all others; None if there is none."""
    if index is None:
        return None
    for axis in (a for a, n in enumerate(full) if n == size):
        steps = torch.arange(size).view(-1, *[1] * (len(full) - 1 - axis))
        if torch.equal(index.expand(full), steps.expand(full)):
            return axis
    return None
