"""The dimensions whose size differs in another graph of a model, and how a plan's indices cut them there."""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ssdsl.model.graph import Operator
from ssdsl.plan.other_sizes.refit import Fit, IndexParts, refit
from ssdsl.plan.plan import Index, Plan

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
