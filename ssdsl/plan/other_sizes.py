"""Fits the cuts of a batch to one of another size: with parts of unequal sizes where equal ones do not divide it.

Of the indices that cut one dimension, at most one may have unequal parts, a limit of the lowering (`divide_dims.py`).
If that is not enough, the dimension is cut less: an index in time gets fewer parts, and devices compute copies. All
operators of another graph of a model have the same new cuts (`Resized`).
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ssdsl.model.graph import Operator
from ssdsl.plan.plan import Index, Plan
from ssdsl.plan.regions import Regions, parts_of


@dataclass(frozen=True, slots=True)
class IndexParts:
    """One index of a dimension, with its number of parts: one part per device, or one after another in time."""

    name: str
    count: int
    in_time: bool


@dataclass(frozen=True, slots=True)
class Fit:
    """One index as it cuts another size: into `count` parts (1: not at all); `at` says which, where they are
    unequal."""

    count: int
    at: Regions | None = None


def refit(size: int, cuts: Sequence[IndexParts], *, unequal: bool) -> Mapping[str, Fit]:
    """The cuts of a dimension of this size by these indices, the outermost first: over as many devices as possible,
    then into as many parts in time.

    >>> refit(12, [IndexParts("dp", 2, False), IndexParts("m", 4, True)], unequal=True)  # 6 each: 2, 2, 1, 1
    {'dp': Fit(count=2, at=None), 'm': Fit(count=4, at=(((0, 2),), ((2, 4),), ((4, 5),), ((5, 6),)))}
    >>> refit(9, [IndexParts("dp", 2, False), IndexParts("m", 4, True)], unequal=True)  # 6 and 3, in thirds
    {'dp': Fit(count=2, at=(((0, 6),), ((6, 9),))), 'm': Fit(count=3, at=None)}
    >>> refit(5, [IndexParts("dp", 2, False)], unequal=False)
    {'dp': Fit(count=1, at=None)}
    """
    found = max(_ways(size, cuts, unequal), key=lambda way: _worth(cuts, *way))
    return dict(zip((c.name for c in cuts), _fits(size, *found), strict=True))


Way = tuple[tuple[int, ...], int | None]  # the numbers of parts, and which index has unequal ones


def _ways(size: int, cuts: Sequence[IndexParts], unequal: bool) -> Iterator[Way]:
    """All possible cuts: equal parts divide the size, and at most one index has unequal ones."""
    for odd in (None, *range(len(cuts))) if unequal else (None,):
        equal = [[1] if n == odd else _divisors(size, c) for n, c in enumerate(cuts)]
        for counts in itertools.product(*equal):
            left, rest = divmod(size, math.prod(counts))
            if rest:
                continue
            if odd is None:
                yield counts, None
            elif left >= cuts[odd].count or cuts[odd].in_time:
                yield (*counts[:odd], min(left, cuts[odd].count), *counts[odd + 1 :]), odd


def _divisors(size: int, cut: IndexParts) -> list[int]:
    """The numbers of equal parts that an index may have: its own, fewer if it is in time, or 1."""
    fewer = range(2, cut.count) if cut.in_time else ()
    return [n for n in (1, *fewer, cut.count) if size % n == 0]


def _worth(cuts: Sequence[IndexParts], counts: Sequence[int], odd: int | None) -> tuple[int, bool, int, bool]:
    """A key to compare cuts by: more devices, devices with equal parts, more parts, all parts equal."""
    devices = math.prod(n for n, c in zip(counts, cuts, strict=True) if not c.in_time)
    return devices, odd is None or cuts[odd].in_time, math.prod(counts), odd is None


def _fits(size: int, counts: Sequence[int], odd: int | None) -> Iterator[Fit]:
    for n, count in enumerate(counts):
        if n != odd:
            yield Fit(count)
            continue
        inner = math.prod(counts[n + 1 :])  # each part is a multiple of it
        each, more = divmod(size // math.prod(counts[:n]) // inner, count)
        sizes = [(each + (k < more)) * inner for k in range(count)]
        yield Fit(count, parts_of(sizes) if more else None)


Key = tuple[int, int]  # the size of a dimension in the plan, and in the other graph


@dataclass(slots=True)
class Resized:
    """The indices that cut each resized dimension, and their new cuts, which are the same for all operators."""

    plan: Plan
    unequal: bool
    chains: dict[Key, dict[tuple[IndexParts, ...], None]] = field(default_factory=dict)
    fits: dict[tuple[int, tuple[IndexParts, ...]], Mapping[str, Fit]] = field(default_factory=dict)

    @staticmethod
    def of(plan: Plan, pairs: Iterable[tuple[Operator, Operator]], unequal: bool) -> "Resized":
        """Collects the resized dimensions of operators of the plan, each paired with its twin in the other graph."""
        found = Resized(plan, unequal)
        for twin, operator in pairs:
            indices, numbers = plan.of(twin.name).indices, numbers_of(twin, operator)
            for dim in dict.fromkeys(i.dim for i in indices):
                sizes = twin.dims[dim].size, operator.dims[numbers[dim]].size if dim in numbers else 1
                if sizes[0] != sizes[1]:
                    found.chains.setdefault(sizes, {})[found._chain(indices, dim, twin)] = None
        return found

    def moved(self, indices: tuple[Index, ...], index: Index, twin: Operator, size: int) -> Index:
        """An index with its cut of the dimension at the new size.

        An operator may lack outer indices that others have. The inner regions count positions inside the outer parts,
        so they are longer there by the number of these parts.
        """
        key = twin.dims[index.dim].size, size
        if key[0] == size:
            return index
        mine = self._chain(indices, index.dim, twin)
        chain = max((chain for chain in self.chains[key] if set(chain) >= set(mine)), key=len)
        fits = self._fit(size, chain)
        outer = itertools.takewhile(lambda cut: cut.name != index.name, chain)
        lacking = math.prod(fits[cut.name].count for cut in outer if cut not in mine)
        return replace(index, count=fits[index.name].count, at=fits[index.name].at).of_all(lacking)

    def counts(self) -> dict[str, int]:
        """The new numbers of parts of indices that have fewer parts than in the plan."""
        found: dict[str, int] = {}
        for (_, size), chains in self.chains.items():
            for chain in chains:
                fits = self._fit(size, chain)
                fewer = {c.name: fits[c.name].count for c in chain if fits[c.name].count < c.count}
                found |= {name: min(n, found.get(name, n)) for name, n in fewer.items()}
        return found

    def _fit(self, size: int, chain: tuple[IndexParts, ...]) -> Mapping[str, Fit]:
        if (size, chain) not in self.fits:
            self.fits[size, chain] = refit(size, chain, unequal=self.unequal)
        return self.fits[size, chain]

    def _chain(self, indices: tuple[Index, ...], dim: int, twin: Operator) -> tuple[IndexParts, ...]:
        place = self.plan.of(twin.name).place  # an operator on data has none: it runs wherever it is read
        meshes = (m for m in self.plan.meshes if place is None or m.name == place.mesh)
        axes = {axis for mesh in meshes for axis, _ in mesh.axes}
        return tuple(IndexParts(i.name, i.count, i.name not in axes) for i in indices if i.dim == dim)


def numbers_of(twin: Operator, operator: Operator) -> dict[int, int]:
    """For each dimension of a twin, its number in the operator: the same number if all names agree, else that of its
    name."""
    names = [d.name for d in operator.dims]
    if names == [d.name for d in twin.dims]:
        return {n: n for n in range(len(names))}
    return {n: names.index(d.name) for n, d in enumerate(twin.dims) if d.name in names}
