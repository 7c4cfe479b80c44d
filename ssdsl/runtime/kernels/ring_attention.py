"""Ring attention: each device has its queries, and keys pass around the ring of devices, chunk by chunk (Liu, Zaharia
and Abbeel 2023, "Ring Attention").

Chunks are sent in halves: while a device computes with one half, the next arrives. So it holds one chunk besides its
own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ..layout.cut import paired, take_runs
from ..layout.regions import Regions, Runs, halves, length, local
from ..ranks.transport import Works
from ..ranks.world import Group
from .attention import Attending, Tensors, merged, nothing, scale_of
from .own_gradient import Gradients, with_gradient
from .softmax_and_max import widened


@dataclass(frozen=True)
class _Ring:
    """`regions`: the positions of each part's keys; `queries`: those of this part's queries."""

    regions: Regions
    queries: Runs
    group: Group
    is_causal: bool
    scale: float

    @property
    def steps(self) -> range:
        """The numbers of steps after which keys of another part are here."""
        return range(1, self.group.size)

    def part(self, keys: Runs) -> Attending:
        """The attention of this device's queries to some keys."""
        return Attending(self.queries, keys, self.is_causal, self.scale)

    @cached_property
    def _columns(self) -> Runs:
        """The positions of all keys that go around, which a mask has as columns."""
        return tuple(sorted(run for runs in self.regions for run in runs))

    def columns(self, keys: Runs) -> Runs:
        """The columns of a mask that some keys have."""
        return local(keys, self._columns)

    def keys(self, step: int, half: int) -> Runs:
        """The positions of the keys that are here after so many steps, for one half of a part (a short part may have
        one half only)."""
        return halves(self.regions[(self.group.index - step) % self.group.size])[half]

    def own(self, half: int, tensors: Tensors) -> list[torch.Tensor]:
        """One half of this device's tensors."""
        mine = self.regions[self.group.index]
        runs = local(self.keys(0, half), mine)
        return [take_runs(x, x.dim() - 2, 1, runs).contiguous() for x in tensors]

    def add_to_own(self, half: int, tensors: Tensors, more: Tensors) -> None:
        """Adds to one half of this device's tensors."""
        runs = local(self.keys(0, half), self.regions[self.group.index])
        for x, added in zip(tensors, more, strict=True):
            for there, here in paired(x, added, -2, runs):
                there += here

    def pass_on(self, step: int, half: int, tensors: Tensors) -> "_Passing":
        """Sends these tensors to the next part, and receives from the previous one the tensors of step `step`."""
        count = length(self.keys(step, half))
        arriving = [x.new_empty((*x.shape[:-2], count, x.shape[-1])) for x in tensors]
        before, behind = ((self.group.index + way) % self.group.size for way in (-1, 1))
        ends = zip(arriving, tensors, strict=True)
        works = [
            self.group.start_exchange({before: into} if count else {}, {behind: x} if x.numel() else {})
            for into, x in ends
        ]
        return _Passing(arriving, Works(works, tensors))

    def around(self, half: int, tensors: Tensors) -> Iterator[tuple[int, list[torch.Tensor]]]:
        """Yields the tensors of one half of each other part, by their step, while the next ones arrive. For the first
        half, this device's own tensors come before, in full, as step 0. The reader drops each before it takes the
        next."""
        passing = self.pass_on(1, half, self.own(half, tensors)) if self.steps else None
        if half == 0:
            yield 0, [*tensors]
        for step in self.steps:
            assert passing is not None
            here, passing = passing.wait(), None  # frees what was sent
            passing = self.pass_on(step + 1, half, here) if step + 1 in self.steps else None
            yield step, here
            del here


@dataclass(frozen=True)
class _Passing:
    """Tensors being received while others are sent."""

    arriving: list[torch.Tensor]
    works: Works

    def wait(self) -> list[torch.Tensor]:
        """The received tensors."""
        self.works.wait()
        return self.arriving


def _ring_gradients(ctx: Any, gradient: torch.Tensor) -> Gradients:
    query, key, value, mask, output, log = ctx.saved_tensors
    ring: _Ring = ctx.ring
    mine = ring.regions[ring.group.index]
    d_query, *d_own = (torch.zeros_like(widened(x)) for x in (query, key, value))
    d_mask = torch.zeros_like(mask) if mask is not None and ctx.needs_input_grad[3] else None

    def attend(keys: Runs, tensors: Tensors, d_keys: Tensors) -> None:
        columns = ring.columns(keys)
        given, of_mask = _columns(mask, columns), _columns(d_mask, columns)
        ring.part(keys).attend_back(query, tensors, given, (gradient, output, log), (d_query, *d_keys), of_mask)
        if of_mask is not None and d_mask is not None:
            _put(d_mask, columns, of_mask)

    for half in (0, 1):
        going: _Passing | None = None  # the gradients travel with their keys, and end at their own part
        for step, here in ring.around(half, (key, value)):
            if step == 0:
                attend(mine, here, d_own)
                continue
            d_keys = [torch.zeros_like(widened(x)) for x in here]
            attend(ring.keys(step, half), here, d_keys)
            del here
            if going is not None:
                d_keys, going = [more.add_(x) for more, x in zip(d_keys, going.wait(), strict=True)], None
            going = ring.pass_on(step + 1, half, d_keys)
            del d_keys
        if going is not None:
            ring.add_to_own(half, d_own, going.wait())
    return *(x.to(query.dtype) for x in (d_query, *d_own)), d_mask


@with_gradient(_ring_gradients)
def attention_ring(
    ctx: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    regions: Regions,
    group: Group,
    scale: float | None = None,
    queries: Runs | None = None,
    merging: Group | None = None,
) -> torch.Tensor:
    """Attention of the queries at `queries`, by default those of the own keys, while keys and values pass around the
    group in halves.

    Besides its own chunk a device holds one half and the one that arrives, so two chunks at most. A mask has the rows
    of these queries, and the columns of all keys that go around. The devices of `merging` have the same queries, and
    rings with other keys: their results are merged, and the gradient of the queries is this ring's addend."""
    rows = queries or (regions[group.index] if is_causal else ((0, query.shape[-2]),))
    ctx.ring = ring = _Ring(regions, rows, group, is_causal, scale_of(query, scale))
    so_far = nothing(query, value)
    for half in (0, 1):
        for step, here in ring.around(half, (key, value)):
            keys = ring.keys(step, half) if step else regions[group.index]
            ring.part(keys).attend(query, here, _columns(mask, ring.columns(keys)), so_far)
            del here
    output, log = so_far if merging is None else merged(so_far, merging)
    result = output.to(query.dtype)
    ctx.save_for_backward(query, key, value, mask, result, log)
    return result


def _columns(mask: torch.Tensor | None, columns: Runs) -> torch.Tensor | None:
    """Some columns of a mask."""
    if mask is None or not mask.dim() or mask.shape[-1] == 1:
        return mask
    return take_runs(mask, mask.dim() - 1, 1, columns)


def _put(whole: torch.Tensor, columns: Runs, part: torch.Tensor) -> None:
    """Writes columns back to the places that they were taken from."""
    if part is not whole:
        for there, here in paired(whole, part, -1, columns):
            there.copy_(here)
