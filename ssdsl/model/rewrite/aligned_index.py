"""Rewrites indices that count along an axis: `x[arange(batch), last]` takes one element of each row.

As an index by two tensors it needs the whole batch. As a gather along the other axis it splits by rows: with x [batch,
seq, class] and last [batch], it is gather(x, 1, last as [batch, 1, class]), of shape [batch, 1, class].
"""

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.model.capture.capture import Capture
from ssdsl.model.graph import Ref
from ssdsl.model.rewrite.known_numbers import known_numbers
from ssdsl.model.rewrite.new_call import new_call

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class _Aligned:
    """An indexed tensor of `shape`: `axes[dim]` is the axis of the index that counts along `dim`, `along` the one other
    indexed dimension, `index` its index, and `full` the shape of all indices together. The axes of the index stand in
    x[i, j] behind `first` of the kept dimensions."""

    shape: tuple[int, ...]
    axes: dict[int, int]
    along: int
    index: str
    full: tuple[int, ...]
    first: int

    @property
    def free(self) -> list[int]:
        """The axes of the index that count along no dimension."""
        return [a for a in range(len(self.full)) if a not in self.axes.values()]

    @property
    def order(self) -> list[int]:
        """The axes of the index in the order of the dimensions."""
        return [a for d in range(len(self.shape)) for a in self.of(d)]

    def of(self, dim: int) -> list[int]:
        """The axes of the index that stand for a dimension; none for one that is not indexed."""
        return [self.axes[dim]] if dim in self.axes else self.free if dim == self.along else []

    @property
    def kept(self) -> list[int]:
        """The dimensions that are not indexed."""
        return [d for d in range(len(self.shape)) if d not in self.axes and d != self.along]

    def taken(self, *, kept: bool) -> tuple[int, ...]:
        """The shape of the gather's index: kept dimensions have their size if `kept`, else size one."""
        sizes = (math.prod(self.full[a] for a in self.of(d)) for d in range(len(self.shape)))
        return tuple(n if kept or d not in self.kept else 1 for d, n in enumerate(self._kept_sizes(sizes)))

    def _kept_sizes(self, sizes: Iterator[int]) -> list[int]:
        return [self.shape[d] if d in self.kept else n for d, n in enumerate(sizes)]


def aligned_index(call: CapturedCall, capture: Capture) -> Iterator[CapturedCall]:
    """Calls in place of x[i, j]: a gather, if all but one index count along an axis of the indices.

    x[arange(n)] becomes a reshape of x, a repeated arange an expand.
    """
    if _is_all(call, capture):
        yield _last(call, aten.reshape.default, call.args[0], capture.tensors[call.outputs[0]].shape)
        return
    if (times := _repeated(call, capture)) is not None:
        yield from _repeat(call, capture, *times)
        return
    if (found := _aligned(call, capture)) is None:
        yield call
        return
    x, out = capture.tensors[call.args[0].value], capture.tensors[call.outputs[0]]
    index = yield from _index(call, capture, found)
    taken = Tensor(found.taken(kept=True), x.dtype)
    rows = yield from new_call(call, "rows", capture, taken, aten.gather.default, call.args[0], found.along, index)
    apart = [n for d in range(len(found.shape)) for n in _sizes(found, d)]
    where = {a: k for k, a in enumerate(_positions(found))}
    order = tuple(where[a] for a in _result(found))
    last = order == tuple(range(len(order)))
    shape = out.shape if last else tuple(apart)
    if last:
        yield _last(call, aten.reshape.default, rows, shape)
        return
    parts = yield from new_call(call, "apart", capture, Tensor(shape, x.dtype), aten.reshape.default, rows, shape)
    yield _last(call, aten.permute.default, parts, order)


def _repeat(call: CapturedCall, capture: Capture, whole: int, each: int) -> Iterator[CapturedCall]:
    """Calls that expand x in place of x[index], where the index repeats each number `each` times, and all `whole`
    times."""
    x, out = capture.tensors[call.args[0].value], capture.tensors[call.outputs[0]]
    count, *rest = x.shape
    thin, wide = (1, count, 1, *rest), (whole, count, each, *rest)
    row = yield from new_call(call, "row", capture, Tensor(thin, x.dtype), aten.reshape.default, call.args[0], thin)
    rows = yield from new_call(call, "rows", capture, Tensor(wide, x.dtype), aten.expand.default, row, wide)
    yield _last(call, aten.reshape.default, rows, out.shape)


def aligned_index_put(call: CapturedCall, capture: Capture) -> Iterator[CapturedCall]:
    """Calls in place of a write to x[i, j]: a scatter, if all but one index count along an axis of the indices."""
    found = _aligned(call, capture)
    if found is None:
        yield call
        return
    x, values = capture.tensors[call.args[0].value], call.args[2]
    index = yield from _index(call, capture, found)
    by_result = [n for a in _result(found) for n in ([found.full[a[1]]] if a[0] == "index" else [found.shape[a[1]]])]
    full = Tensor(tuple(by_result), x.dtype)
    wide = yield from new_call(call, "wide", capture, full, aten.expand.default, values, full.shape)
    where = {a: k for k, a in enumerate(_result(found))}
    order = tuple(where[a] for a in _positions(found))
    turned = Tensor(tuple(full.shape[k] for k in order), x.dtype)
    wide = yield from new_call(call, "turned", capture, turned, aten.permute.default, wide, order)
    shape = found.taken(kept=True)
    source = yield from new_call(call, "source", capture, Tensor(shape, x.dtype), aten.reshape.default, wide, shape)
    target = aten.scatter_add.default if call.argument("accumulate") else aten.scatter.src
    yield _last(call, target, call.args[0], found.along, index, source)


def _index(call: CapturedCall, capture: Capture, found: _Aligned) -> Generator[CapturedCall, None, Ref]:
    """Makes the index of the gather, in the shape of its result; negative indices are counted from the start."""

    def tensor(shape: Sequence[int]) -> Tensor:
        return Tensor(tuple(shape), "int64")

    size = found.shape[found.along]
    given = tensor(capture.tensors[found.index].shape)
    index = yield from new_call(call, "index", capture, given, aten.remainder.Scalar, Ref(found.index), size)
    index = yield from new_call(call, "full", capture, tensor(found.full), aten.expand.default, index, found.full)
    if found.order != list(range(len(found.full))):
        order = tuple(found.order)
        turned = tensor([found.full[a] for a in order])
        index = yield from new_call(call, "ordered", capture, turned, aten.permute.default, index, order)
    thin, wide = found.taken(kept=False), found.taken(kept=True)
    index = yield from new_call(call, "thin", capture, tensor(thin), aten.reshape.default, index, thin)
    if thin != wide:
        index = yield from new_call(call, "index_rows", capture, tensor(wide), aten.expand.default, index, wide)
    return index


Position = tuple[str, int]  # an axis of the index, or a dimension that is kept


def _positions(found: _Aligned) -> list[Position]:
    """The positions of the axes of the gather's result, where `along` has an axis for each of its index's axes."""
    places: list[Position] = []
    for d in range(len(found.shape)):
        places += [("dim", d)] if d in found.kept else [("index", a) for a in found.of(d)]
    return places


def _sizes(found: _Aligned, dim: int) -> list[int]:
    return [found.shape[dim]] if dim in found.kept else [found.full[a] for a in found.of(dim)]


def _result(found: _Aligned) -> list[Position]:
    """The positions of the axes of x[i, j]: those of the index stand together."""
    index: list[Position] = [("index", a) for a in range(len(found.full))]
    kept: list[Position] = [("dim", d) for d in found.kept]
    return [*kept[: found.first], *index, *kept[found.first :]]


def _last(call: CapturedCall, target: Any, *args: object) -> CapturedCall:
    return replace(call, kind=str(target).split(".")[1], target=target, args=args, kwargs={})


# -- which indices count -----------------------------------------------------------------------------------------------


def _aligned(call: CapturedCall, capture: Capture) -> _Aligned | None:
    """The form of a call's index, if all but one of its indices count along an axis; else None."""
    indices = {d: i.value for d, i in enumerate(call.args[1]) if i is not None}
    tensors = [capture.tensors[v] for v in indices.values()]
    shape = capture.tensors[call.args[0].value].shape
    if any(t.dtype not in ("int64", "int32") for t in tensors):
        return None
    full = tuple(torch.broadcast_shapes(*(t.shape for t in tensors)))  # type: ignore[no-untyped-call]
    calls = {o: c for c in capture.calls for o in c.outputs}
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


def _is_all(call: CapturedCall, capture: Capture) -> bool:
    """Whether a call has one index, and it counts along its whole dimension: the result is the tensor itself."""
    indices = [(d, i.value) for d, i in enumerate(call.args[1]) if i is not None]
    calls = {o: c for c in capture.calls for o in c.outputs}
    size = capture.tensors[call.args[0].value].shape
    return len(indices) == 1 and all(
        capture.tensors[v].shape == (size[d],) and _counted(known_numbers(v, calls, capture), (size[d],), size[d]) == 0
        for d, v in indices
    )


def _repeated(call: CapturedCall, capture: Capture) -> tuple[int, int] | None:
    """(whole, 1) if the only index is `arange(n).repeat(whole)`, (1, each) if `arange(n).repeat_interleave(each)`.

    It may have any shape. None for other indices.
    """
    if len(call.args[1]) != 1:
        return None
    count = capture.tensors[call.args[0].value].shape[0]
    calls = {o: c for c in capture.calls for o in c.outputs}
    index = known_numbers(call.args[1][0].value, calls, capture)
    if index is None or index.is_floating_point() or index.dtype == torch.bool or not count:
        return None
    times, left = divmod(index.numel(), count)
    if left or not times:
        return None
    counted = torch.arange(count)
    if torch.equal(index.flatten(), counted.repeat_interleave(times)):
        return 1, times
    return (times, 1) if torch.equal(index.flatten(), counted.repeat(times)) else None


def _counted(index: torch.Tensor | None, full: tuple[int, ...], size: int) -> int | None:
    """The axis along which an index is 0, 1, ... size - 1, constant along all others; None if there is none."""
    if index is None:
        return None
    for axis in (a for a, n in enumerate(full) if n == size):
        steps = torch.arange(size).view(-1, *[1] * (len(full) - 1 - axis))
        if torch.equal(index.expand(full), steps.expand(full)):
            return axis
    return None
