"""Where a digit lies in a tensor: cutting it out into a leading axis, and putting it back.

Axis `dim` of a tensor, viewed as (outer, count, rest), has the digit in the middle. An axis of 12 = 2 blocks of 3 parts
of 2 elements (outer 2, count 3, rest 2):

    >>> axis = torch.arange(12)
    >>> cut_out(axis, 0, outer=2, count=3).tolist()      # part k: the k-th pair of each block
    [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    >>> take(axis, 0, outer=2, count=3, index=1).tolist()
    [2, 3, 8, 9]
    >>> put_back(cut_out(axis, 0, 2, 3), 0, 2).tolist() == axis.tolist()
    True
"""

import torch

from .regions import Regions, Runs


def cut_out(x: torch.Tensor, dim: int, outer: int, count: int) -> torch.Tensor:
    """The digit as a new first axis: [..., outer * count * rest, ...] -> [count, ..., outer * rest, ...],
    contiguous."""
    shape = x.shape
    rest = shape[dim] // (outer * count)
    parts = x.reshape(*shape[:dim], outer, count, rest, *shape[dim + 1 :])
    return parts.movedim(dim + 1, 0).reshape(count, *shape[:dim], outer * rest, *shape[dim + 1 :]).contiguous()


def put_back(parts: torch.Tensor, dim: int, outer: int) -> torch.Tensor:
    """The inverse of `cut_out`: [count, ..., outer * rest, ...] -> [..., outer * count * rest, ...]."""
    count, *shape = parts.shape
    rest = shape[dim] // outer
    split = parts.reshape(count, *shape[:dim], outer, rest, *shape[dim + 1 :])
    return split.movedim(0, dim + 1).reshape(*shape[:dim], outer * count * rest, *shape[dim + 1 :])


def take(x: torch.Tensor, dim: int, outer: int, count: int, index: int) -> torch.Tensor:
    """The part of `x` whose digit has the value `index`: [..., outer * count * rest, ...] -> [..., outer * rest, ...].

    A view where the digit is outermost (outer = 1), else a copy.
    """
    rest = x.shape[dim] // (outer * count)
    if outer == 1:
        return x.narrow(dim, index * rest, rest)
    shape = x.shape
    parts = x.reshape(*shape[:dim], outer, count, rest, *shape[dim + 1 :])
    return parts.select(dim + 1, index).reshape(*shape[:dim], outer * rest, *shape[dim + 1 :])


def take_sizes(x: torch.Tensor, dim: int, outer: int, sizes: tuple[int, ...], index: int) -> torch.Tensor:
    """As `take`, of a digit whose parts are of unequal sizes: axis `dim` is (outer, sum of the sizes, rest).

    >>> take_sizes(torch.arange(6), 0, outer=1, sizes=(3, 1, 2), index=2).tolist()
    [4, 5]
    >>> take_sizes(torch.arange(6), 0, outer=2, sizes=(1, 2), index=1).tolist()    # of each block of 3 the last 2
    [1, 2, 4, 5]
    """
    shape = x.shape
    rest = shape[dim] // (outer * sum(sizes))
    start, length = sum(sizes[:index]) * rest, sizes[index] * rest
    if outer == 1:
        return x.narrow(dim, start, length)
    parts = x.reshape(*shape[:dim], outer, -1, *shape[dim + 1 :]).narrow(dim + 1, start, length)
    return parts.reshape(*shape[:dim], outer * length, *shape[dim + 1 :])


def join_sizes(parts: list[torch.Tensor], dim: int, outer: int) -> torch.Tensor:
    """The inverse of `take_sizes`, from all parts in order.

    >>> join_sizes([torch.tensor([0, 3]), torch.tensor([1, 2, 4, 5])], 0, outer=2).tolist()
    [0, 1, 2, 3, 4, 5]
    """
    shape = parts[0].shape
    split = [p.reshape(*shape[:dim], outer, -1, *shape[dim + 1 :]) for p in parts]
    return torch.cat(split, dim + 1).flatten(dim, dim + 1)


def contiguous(x: torch.Tensor, order: tuple[int, ...] = ()) -> torch.Tensor:
    """`x` in memory of its own without gaps, its axes in this order, by default as they are: `x` itself if it lies so.
    For kernels that ask for strides.

    >>> contiguous(torch.empty(2, 3, 4).mT).stride(), contiguous(torch.empty(2, 3, 4), (0, 2, 1)).stride()
    ((12, 3, 1), (12, 1, 3))
    """
    moved = x.permute(order) if order else x
    dense = torch.empty(moved.shape, device="meta").stride()
    if moved.stride() == dense and x.storage_offset() == 0:
        return x
    copy = moved.clone(memory_format=torch.contiguous_format)
    return copy.permute([order.index(axis) for axis in range(x.dim())]) if order else copy


def extend(earlier: torch.Tensor | None, x: torch.Tensor, dim: int, outer: int = 1) -> torch.Tensor:
    """A part behind those before it, of which the first has none: axis `dim` is (outer, positions)."""
    if earlier is None:
        return x
    return torch.cat([earlier, x], dim) if outer == 1 else join_sizes([earlier, x], dim, outer)


def take_at(x: torch.Tensor, dim: int, outer: int, at: Regions, index: int) -> torch.Tensor:
    """As `take`, of parts that are regions, which may overlap: axis `dim` is (outer, positions).

    All parts are views or none is: what looks into gathered weights is gathered again in backward, by all devices.

    >>> take_at(torch.arange(6), 0, outer=1, at=(((0, 4),), ((2, 6),)), index=1).tolist()
    [2, 3, 4, 5]
    """
    part = runs_of(x, dim, outer, at[index])
    is_view = part.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    return part.clone() if is_view and (outer > 1 or any(len(runs) != 1 for runs in at)) else part


def runs_of(x: torch.Tensor, dim: int, outer: int, runs: Runs) -> torch.Tensor:
    """Some runs of each of the `outer` blocks of axis `dim`, end to end; a view where it is one run of one block."""
    if outer == 1 and len(runs) == 1:
        return x.narrow(dim, runs[0][0], runs[0][1] - runs[0][0])
    blocks = x.unflatten(dim, (outer, -1))  # type: ignore[no-untyped-call]
    kept = [blocks.narrow(dim + 1, start, end - start) for start, end in runs]
    return torch.cat(kept, dim + 1).flatten(dim, dim + 1) if kept else x.narrow(dim, 0, 0)


def cut_part(x: torch.Tensor, dim: int, outer: int, parts: int | Regions, index: int) -> torch.Tensor:
    """One part, of so many equal ones or of these regions."""
    return take(x, dim, outer, parts, index) if isinstance(parts, int) else take_at(x, dim, outer, parts, index)


def put(x: torch.Tensor, part: torch.Tensor, cuts: list[tuple[int, int, int | Regions, int]]) -> None:
    """Writes the part that `cut_part` would cut out of `x`, one (dim, outer, count or regions, index) after another.
    `x` is contiguous.

    >>> x = torch.zeros(8)
    >>> put(x, torch.ones(4), [(0, 2, 2, 1)])     # 8 = 2 · count 2 · 2: the second part is strided
    >>> x.tolist()
    [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    """
    places = torch.arange(x.numel(), device=x.device).view(x.shape)
    for cut in cuts:
        places = cut_part(places, *cut)
    x.view(-1)[places.reshape(-1)] = part.detach().reshape(-1)
