"""Joins the parts of a value along time indices for the block that reads it, and splits its gradient among the parts.

>>> join = Join("mb", 2, dim=0, at=(((0, 3),), ((3, 5),)), reads=(((0, 3),), ((2, 5),)))
>>> given = Input("x", ("mb",), (join,))
>>> x = {(0,): torch.tensor([0, 1, 2]), (1,): torch.tensor([3, 4])}
>>> [part for part in given.parts({"mb": 1})], given.value(x, {"mb": 1}).tolist()      # part 1 reads [2, 5) of 5
([(0,), (1,)], [2, 3, 4])
>>> [(part, gradient.tolist(), regions[0].runs) for part, gradient, regions in given.split(torch.ones(3), {"mb": 1})]
[((0,), [1.0], ((2, 3),)), ((1,), [1.0, 1.0], ((0, 2),))]
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from ..layout.cut import joined, take, take_runs
from ..layout.regions import Regions, Runs, length, local, parts_of
from .gradient_accumulator import AxisRuns

At = tuple[int, ...]


@dataclass(frozen=True)
class Join:
    """Joins the parts of a value along a time index: concatenated along `dim` within `outer` blocks, or summed.

    With `earlier`, only parts before the running one are read. Parts that are not equal consecutive runs lie `at` these
    runs of each block, one for each part. With `reads`, each part of the reader gets its region of the joined parts.
    """

    index: str
    count: int
    dim: int | None = None
    outer: int = 1
    at: Regions | None = None
    earlier: bool = False
    reads: Regions | None = None

    def parts(self, at: int) -> Sequence[int]:
        """The numbers of the parts that part `at` reads, in the order of their positions."""
        if self.earlier:
            return range(at)
        ordered = range(self.count) if self.at is None else sorted(range(self.count), key=self.at.__getitem__)
        return ordered if self.reads is None else [k for k in ordered if self._runs(k, at)]

    def read(self, part: torch.Tensor, k: int, at: int) -> torch.Tensor:
        """The elements of part k that part `at` reads."""
        return part if self.reads is None or self.dim is None else take_runs(part, self.dim, 1, self._runs(k, at))

    def value(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The joined parts."""
        if len(parts) == 1:
            return parts[0]
        if self.dim is None:
            return torch.stack([*parts]).sum(0) if len(parts) > 2 else parts[0] + parts[1]
        return joined(parts, self.dim, self.outer)

    def split(self, gradient: torch.Tensor, at: int) -> Iterator[tuple[int, torch.Tensor, tuple[AxisRuns, ...]]]:
        """The gradient of each part that part `at` has read, with its region if only a region was read."""
        parts = self.parts(at)
        if self.dim is None:
            yield from ((k, gradient, ()) for k in parts)
        elif self.at is None:
            yield from ((k, take(gradient, self.dim, self.outer, len(parts), n), ()) for n, k in enumerate(parts))
        else:
            regions = [AxisRuns(self.dim, self._runs(k, at), length(self.at[k])) for k in parts]
            lengths = parts_of([length(region.runs) for region in regions])
            for n, (k, region) in enumerate(zip(parts, regions, strict=True)):
                yield k, take(gradient, self.dim, self.outer, lengths, n), (region,)

    def _runs(self, k: int, at: int) -> Runs:
        """The positions in part k that part `at` reads."""
        assert self.at is not None
        return ((0, length(self.at[k])),) if self.reads is None else local(self.reads[at], self.at[k])


@dataclass(frozen=True)
class Input:
    """A value from another block: `slot` is its key in the rank's storage, `time` the indices of its parts."""

    slot: str
    time: tuple[str, ...] = ()
    joins: tuple[Join, ...] = ()
    gradient: bool = True

    def parts(self, at: Mapping[str, int]) -> Iterator[At]:
        """The parts that a block reads at some indices: at indices that both have its own part, else all parts."""
        joins = {j.index: j for j in self.joins}
        return itertools.product(*(joins[i].parts(at.get(i, 0)) if i in joins else (at[i],) for i in self.time))

    def value(self, parts: Mapping[At, torch.Tensor], at: Mapping[str, int]) -> torch.Tensor:
        """The joined parts."""
        for join in self.joins:
            where = self.time.index(join.index)
            groups: dict[At, list[torch.Tensor]] = {}
            for part, value in parts.items():
                read = join.read(value, part[where], at.get(join.index, 0))
                groups.setdefault((*part[:where], 0, *part[where + 1 :]), []).append(read)
            parts = {part: join.value(values) for part, values in groups.items()}
        (value,) = parts.values()
        return value

    def split(
        self, gradient: torch.Tensor, at: Mapping[str, int]
    ) -> Iterator[tuple[At, torch.Tensor, tuple[AxisRuns, ...]]]:
        """The gradient of each part of the value, with the regions of it that were read, if not all."""
        found: list[tuple[dict[str, int], torch.Tensor, tuple[AxisRuns, ...]]] = [({**at}, gradient, ())]
        for number, join in reversed(list(enumerate(self.joins))):
            is_cut_again = any(inner.dim == join.dim for inner in self.joins[:number])
            pieces = []
            for where, value, regions in found:
                for k, part, region in join.split(value, at.get(join.index, 0)):
                    if region and is_cut_again:
                        part, region = region[0].in_whole(part), ()
                    pieces.append(({**where, join.index: k}, part, (*regions, *region)))
            found = pieces
        for where, part, regions in found:
            yield tuple(where[i] for i in self.time), part, regions
