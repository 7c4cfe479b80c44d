"""Outputs by name: which parts of a tensor that was asked for a rank keeps, and which rank answers for them."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from .moves import cut_part
from .regions import Regions
from .table import Table, is_at, takes_of
from .world import World

Take = tuple[str, int, int, int | Regions]  # an axis or an index in time: dim, outer, a count or regions of the parts
At = tuple[int, ...]
Placed = tuple[list[torch.Tensor], torch.Tensor]  # positions on every axis of the whole, and the part


@dataclass(frozen=True)
class Output:
    """What this rank keeps of an output of `shape`: in its slot, a part for each coordinate of the indices in `time`.

    `at` are the coordinates of the rank. Over the indices in `sums` the parts are addends. Of all ranks that keep the
    same parts one `owns` them.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    slot: str
    time: dict[str, int]
    takes: tuple[Take, ...]
    sums: tuple[str, ...]
    at: dict[str, int]
    owns: bool

    def parts(self, values: Mapping[tuple[str, At], torch.Tensor]) -> Iterator[Placed]:
        """The parts that the rank keeps at the end of a step, each with its positions on every axis of the whole."""
        taken = {name for name, *_ in self.takes}
        ranges = [range(n) if name in taken else (0,) for name, n in self.time.items()]
        for chosen in itertools.product(*ranges):
            fixed = dict(zip(self.time, chosen, strict=True))
            summed = [range(n) if name in self.sums else (fixed[name],) for name, n in self.time.items()]
            addends = [values[self.slot, at] for at in itertools.product(*summed)]
            yield self._places({**self.at, **fixed}), torch.stack(addends).sum(0) if len(addends) > 1 else addends[0]

    def _places(self, at: Mapping[str, int]) -> list[torch.Tensor]:
        found = [torch.arange(size) for size in self.shape]
        for name, dim, outer, parts in self.takes:
            found[dim] = cut_part(found[dim], 0, outer, parts, at[name])
        return [places.reshape(-1) for places in found]


def outputs_of(table: Table, world: World) -> list[Output]:
    """The outputs of which this rank keeps parts."""
    found = []
    for o in table["outputs"]:
        at = is_at(o, world)
        if at is not None:
            taken = {take[0] for take in o["takes"]}
            owns = all(c == 0 for axis, c in at.items() if axis not in taken and axis not in o["fixed"])
            takes = takes_of(o)
            dtype = getattr(torch, o["dtype"])
            found.append(
                Output(o["name"], tuple(o["shape"]), dtype, o["slot"], o["time"], takes, tuple(o["sums"]), at, owns)
            )
    return found
