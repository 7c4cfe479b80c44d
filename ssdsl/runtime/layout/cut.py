"""Cuts an axis of a tensor: takes a part, joins parts, and splits all parts off into a leading axis.

Axis `dim` is viewed as (outer, count, rest); the middle one is the number of the part. An axis of 12 = 2 blocks of 3
parts of 2 elements (outer 2, count 3, rest 2):

    >>> axis = torch.arange(12)
    >>> split_blocks(axis, 0, outer=2, count=3).tolist()      # part k: the k-th pair of each block
    [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    >>> take(axis, 0, outer=2, parts=3, index=1).tolist()
    [2, 3, 8, 9]
    >>> merge_blocks(split_blocks(axis, 0, 2, 3), 0, 2).tolist() == axis.tolist()
    True
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .regions import Regions, Runs, parts_of

Digit = tuple[int, int, int]  # dim, outer, the number of parts
Take = tuple[int, int, int | Regions, int]  # dim, outer, the number of equal parts or the regions, which of them


def take(x: torch.Tensor, dim: int, outer: int, parts: int | Regions, index: int) -> torch.Tensor:
    """One part of axis `dim`, which consists of `outer` blocks: from each block run number `index` of so many equal
    ones, or of these regions, which may have unequal sizes and overlap.

    Either all parts are views or none is, because views of gathered weights are gathered again in backward, by all
    devices.

    >>> [take(torch.arange(6), 0, 1, (((0, 4),), ((2, 6),)), k).tolist() for k in (0, 1)]
    [[0, 1, 2, 3], [2, 3, 4, 5]]
    """
    if isinstance(parts, int):
        rest = x.shape[dim] // (outer * parts)
        return take_runs(x, dim, outer, ((index * rest, (index + 1) * rest),))
    part = take_runs(x, dim, outer, parts[index])
    is_view = outer == 1 and len(parts[index]) == 1
    return part.clone() if is_view and any(len(runs) != 1 for runs in parts) else part


def take_runs(x: torch.Tensor, dim: int, outer: int, runs: Runs) -> torch.Tensor:
    """Some runs of each of the `outer` blocks of axis `dim`, concatenated; a view if it is one run of one block."""
    if outer == 1 and len(runs) == 1:
        return x.narrow(dim, runs[0][0], runs[0][1] - runs[0][0])
    blocks = x.unflatten(dim, (outer, -1))  # type: ignore[no-untyped-call]
    kept = [blocks.narrow(dim + 1, start, end - start) for start, end in runs or ((0, 0),)]
    return torch.cat(kept, dim + 1).flatten(dim, dim + 1)


def positions(shape: Sequence[int], takes: Iterable[Take], device: torch.device | None = None) -> list[torch.Tensor]:
    """The positions on each axis of a tensor of this shape that remain after taking one part after another.

    >>> [p.tolist() for p in positions((4, 6), [(0, 1, 2, 1), (1, 3, 2, 0)])]
    [[2, 3], [0, 2, 4]]
    """
    found = [torch.arange(size, device=device) for size in shape]
    for dim, outer, parts, index in takes:
        found[dim] = take(found[dim], 0, outer, parts, index)
    return found


@dataclass(frozen=True)
class Piece:
    """The place of a local tensor in the whole tensor of `shape`: a series of cuts, one after another.

    >>> Piece("w", (4, 6), ((0, 1, 2, 1), (1, 3, 2, 0))).of(torch.arange(24).view(4, 6)).tolist()
    [[12, 14, 16], [18, 20, 22]]
    """

    name: str
    shape: tuple[int, ...]
    takes: tuple[Take, ...] = ()

    def places(self) -> list[torch.Tensor]:
        """The positions of the part on each axis of the whole tensor."""
        return positions(self.shape, self.takes)

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part, contiguous."""
        for taken in self.takes:
            whole = take(whole, *taken)
        return whole.contiguous()

    def with_layout(self, local: torch.Tensor) -> dict[str, Any]:
        """The part and how it was cut, which is enough to assemble the whole tensor again."""
        return {"shape": self.shape, "takes": list(self.takes), "tensor": local.detach().cpu().clone()}


def elements_at(places: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """An index for the elements at these positions of each axis: `x[elements_at(places)]` has shape [len(p) for p in
    places].

    >>> torch.arange(6).view(2, 3)[elements_at([torch.tensor([1]), torch.tensor([0, 2])])].tolist()
    [[3, 5]]
    """
    return torch.meshgrid(*places, indexing="ij") if places else ()


def joined(parts: Sequence[torch.Tensor], dim: int, outer: int) -> torch.Tensor:
    """Concatenates parts that lie one behind the other in each of the `outer` blocks of axis `dim`.

    >>> joined([torch.tensor([0, 3]), torch.tensor([1, 2, 4, 5])], 0, outer=2).tolist()
    [0, 1, 2, 3, 4, 5]
    """
    if outer == 1:
        return torch.cat([*parts], dim)
    blocks = [p.unflatten(dim, (outer, -1)) for p in parts]  # type: ignore[no-untyped-call]
    return torch.cat(blocks, dim + 1).flatten(dim, dim + 1)


def paired(
    whole: torch.Tensor, part: torch.Tensor, dim: int, runs: Runs
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """For each run of axis `dim`, a view of `whole` and the matching view of `part`, in which the runs are
    concatenated.

    >>> x = torch.zeros(5)
    >>> for there, here in paired(x, torch.ones(3), 0, ((0, 1), (3, 5))):
    ...     there += here
    >>> x.tolist()
    [1.0, 0.0, 0.0, 1.0, 1.0]
    """
    before = 0
    for start, end in runs:
        yield whole.narrow(dim, start, end - start), part.narrow(dim, before, end - start)
        before += end - start


def split_blocks(x: torch.Tensor, dim: int, outer: int, count: int) -> torch.Tensor:
    """All equal parts along a new first axis: [..., outer * count * rest, ...] -> [count, ..., outer * rest, ...],
    contiguous."""
    blocks: torch.Tensor = x.unflatten(dim, (outer, count, -1))  # type: ignore[no-untyped-call]
    return blocks.movedim(dim + 1, 0).flatten(dim + 1, dim + 2).contiguous()


def merge_blocks(parts: torch.Tensor, dim: int, outer: int) -> torch.Tensor:
    """The inverse of `split_blocks`: [count, ..., outer * rest, ...] -> [..., outer * count * rest, ...]."""
    blocks: torch.Tensor = parts.unflatten(dim + 1, (outer, -1))  # type: ignore[no-untyped-call]
    return blocks.movedim(0, dim + 1).flatten(dim, dim + 2)


def split_digits(x: torch.Tensor, digits: Sequence[Digit]) -> torch.Tensor:
    """The parts by several digits along a new first axis, contiguous. The place of a digit is that in a part by those
    before it; the last digit counts innermost in the new axis.

    >>> split_digits(torch.arange(8).view(2, 4), [(0, 1, 2), (1, 2, 2)]).tolist()
    [[[0, 2]], [[1, 3]], [[4, 6]], [[5, 7]]]
    """
    parts = x
    for number, (dim, outer, count) in enumerate(digits):
        parts = split_blocks(parts, dim + (number > 0), outer, count)
        parts = parts.transpose(0, 1).flatten(0, 1) if number else parts
    return parts.contiguous()


def merge_digits(parts: torch.Tensor, digits: Sequence[Digit]) -> torch.Tensor:
    """The inverse of `split_digits`.

    >>> digits = [(0, 1, 2), (1, 2, 2)]
    >>> merge_digits(split_digits(torch.arange(8).view(2, 4), digits), digits).tolist()
    [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    for dim, outer, count in reversed(digits[1:]):
        blocks: torch.Tensor = parts.unflatten(0, (-1, count))  # type: ignore[no-untyped-call]
        parts = merge_blocks(blocks.transpose(0, 1), dim + 1, outer)
    return merge_blocks(parts, *digits[0][:2])


def put(x: torch.Tensor, part: torch.Tensor, takes: Iterable[Take]) -> None:
    """Writes `part` into the positions of `x` that remain after taking one part after another.

    >>> x = torch.zeros(8)
    >>> put(x, torch.ones(4), [(0, 2, 2, 1)])     # 8 = 2 · count 2 · 2: the second part is strided
    >>> x.tolist()
    [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    """
    x[elements_at(positions(x.shape, takes, x.device))] = part.detach()


def take_at(x: torch.Tensor, dim: int, outer: int, at: Regions, index: int) -> torch.Tensor:
    """`take` for parts that are regions."""
    return take(x, dim, outer, at, index)


def take_sizes(x: torch.Tensor, dim: int, outer: int, sizes: Sequence[int], index: int) -> torch.Tensor:
    """`take` for consecutive parts of these sizes.

    >>> take_sizes(torch.arange(6), 0, outer=2, sizes=(1, 2), index=1).tolist()    # of each block of 3 the last 2
    [1, 2, 4, 5]
    """
    return take(x, dim, outer, parts_of(sizes), index)


def contiguous(x: torch.Tensor, order: tuple[int, ...] = ()) -> torch.Tensor:
    """A copy of `x` without gaps, its axes in memory in this order (by default theirs); `x` itself if it lies so
    already. For kernels that need certain strides.

    >>> contiguous(torch.empty(2, 3, 4).mT).stride(), contiguous(torch.empty(2, 3, 4), (0, 2, 1)).stride()
    ((12, 3, 1), (12, 1, 3))
    """
    moved = x.permute(order) if order else x
    dense = torch.empty(moved.shape, device="meta").stride()
    if moved.stride() == dense and x.storage_offset() == 0:
        return x
    copy = moved.clone(memory_format=torch.contiguous_format)
    return copy.permute([order.index(axis) for axis in range(x.dim())]) if order else copy
