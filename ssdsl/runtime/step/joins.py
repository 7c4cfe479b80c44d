"""Joins the parts of a value along time indices for the block that reads it, splits its gradient among the parts, and
adds up the gradients of a part over its readers, each of which may read all of it or runs of it.

>>> join = Join("mb", 2, dim=0, at=(((0, 3),), ((3, 5),)), reads=(((0, 3),), ((2, 5),)))
>>> given = Input("x", ("mb",), (join,))
>>> x = {(0,): torch.tensor([0, 1, 2]), (1,): torch.tensor([3, 4])}
>>> [part for part in given.parts({"mb": 1})], given.value(x, {"mb": 1}).tolist()      # part 1 reads [2, 5) of 5
([(0,), (1,)], [2, 3, 4])
>>> [(part, gradient.tolist(), regions[0].runs) for part, gradient, regions in given.split(torch.ones(3), {"mb": 1})]
[((0,), [1.0], ((2, 3),)), ((1,), [1.0, 1.0], ((0, 2),))]
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from ..layout.cut import joined, paired, take, take_runs
from ..layout.regions import Regions, Runs, length, local, parts_of

At = tuple[int, ...]
Key = tuple[str, At]


@dataclass(frozen=True)
class AxisRuns:
    """Runs of axis `dim` of a part; the axis has `size` positions."""

    dim: int
    runs: Runs
    size: int

    @property
    def is_whole(self) -> bool:
        return self.runs == ((0, self.size),)

    def in_whole(self, x: torch.Tensor) -> torch.Tensor:
        """These runs of the axis in all of it, with zeros around them."""
        if self.is_whole:
            return x
        whole = _zeros(x, [self])
        _add(whole, x, [self])
        return whole


@dataclass(frozen=True)
class Join:
    """Joins the parts of a value along a time index: concatenated along `dim` within `outer` blocks, or summed.

    Parts that are not equal consecutive runs lie `at` these runs of each block, one for each part. With `reads`, each
    part of the reader gets its region of the joined parts.
    """

    index: str
    count: int
    dim: int | None = None
    outer: int = 1
    at: Regions | None = None
    reads: Regions | None = None

    def parts(self, at: int) -> Sequence[int]:
        """The numbers of the parts that part `at` reads, in the order of their positions."""
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
    """A value from another block: `slot` is its key in the rank's storage, `time` the indices of its parts.

    A value that earlier tasks of the block itself have left has an index `earlier`: the block gets all parts before its
    own along it, as a tuple, and not joined.
    """

    slot: str
    time: tuple[str, ...] = ()
    joins: tuple[Join, ...] = ()
    gradient: bool = True
    earlier: str | None = None

    def parts(self, at: Mapping[str, int]) -> Iterator[At]:
        """The parts that a block reads at some indices: at indices that both have its own part, else all parts."""
        joins = {j.index: j for j in self.joins}

        def along(index: str) -> Iterable[int]:
            if index == self.earlier:
                return range(at[index])
            return joins[index].parts(at.get(index, 0)) if index in joins else (at[index],)

        return itertools.product(*map(along, self.time))

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


class GradientAccumulator:
    """The sums so far. Gradients that readers passed may be views of other tensors, so only sums that were allocated
    here are added to in place."""

    def __init__(self) -> None:
        self.sums: dict[Key, torch.Tensor] = {}
        self.own: set[Key] = set()

    def add(self, key: Key, gradient: torch.Tensor, regions: Iterable[AxisRuns] = ()) -> None:
        """Adds the gradient of a part, or of the `regions` of it."""
        partial = [region for region in regions if not region.is_whole]
        if key not in self.sums and not partial:
            self.sums[key] = gradient
        elif not partial and key not in self.own:
            self._keep(key, self.sums[key] + gradient)
        else:
            if key not in self.own:
                self._keep(key, self.sums[key].clone() if key in self.sums else _zeros(gradient, partial))
            _add(self.sums[key], gradient, partial)

    def _keep(self, key: Key, gradient: torch.Tensor) -> None:
        self.sums[key] = gradient
        self.own.add(key)

    def pop(self, key: Key) -> torch.Tensor | None:
        """The final gradient of a part; None if it has none."""
        self.own.discard(key)
        return self.sums.pop(key, None)

    def clear(self) -> None:
        """Drops all gradients."""
        self.own.clear()
        self.sums.clear()


def _zeros(gradient: torch.Tensor, partial: list[AxisRuns]) -> torch.Tensor:
    shape = list(gradient.shape)
    for region in partial:
        shape[region.dim] = region.size
    return gradient.new_zeros(shape)


def _add(total: torch.Tensor, gradient: torch.Tensor, partial: list[AxisRuns]) -> None:
    """Adds `partial` to the positions of `total` that all runs of these axes select.

    >>> total = torch.zeros(5)
    >>> _add(total, torch.ones(3), [AxisRuns(0, ((0, 1), (3, 5)), 5)])
    >>> total.tolist()
    [1.0, 0.0, 0.0, 1.0, 1.0]
    """
    if not partial:
        total += gradient
        return
    first, *rest = partial
    for there, here in paired(total, gradient, first.dim, first.runs):
        _add(there, here, rest)
