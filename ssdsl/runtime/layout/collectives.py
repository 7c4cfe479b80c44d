"""Collectives as steps, and `reshard`, which applies some steps to a tensor and others to its gradient.

A step is a function from the local tensor in one layout to the local tensor in the next. With n ranks in the group, and
the axis `dim` viewed as (outer, count, rest):

| step | x | result |
|---|---|---|
| `all_reduce`, `keep_first` | [...] | [...] |
| `all_gather` | [..., outer * rest, ...] | [..., outer * n * rest, ...] |
| `reduce_scatter`, `narrow` | [..., outer * n * rest, ...] | [..., outer * rest, ...] |
| `exchange` | [..., outer * positions of `have`, ...] | [..., outer * positions of `need`, ...] |
| `all_to_all` | n times as long along `target` | n times as long along `source` |
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..program.provenance import Place, caller
from ..ranks.world import Group, World, here
from .cut import merge_blocks, paired, split_blocks, take, take_runs
from .regions import Regions, length, needs_exchange, pieces

Step = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class all_reduce:
    """Sums over the group."""

    group: Group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone(memory_format=torch.contiguous_format)
        self.group.all_reduce(x)
        return x


@dataclass(frozen=True, slots=True)
class all_reduce_:
    """Sums over the group, in place: for a tensor that nothing else reads."""

    group: Group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        self.group.all_reduce(x)
        return x


@dataclass(frozen=True, slots=True)
class all_gather:
    """Concatenates the parts of the group along axis `dim`; each of the `outer` blocks has one block per rank."""

    group: Group
    dim: int
    outer: int = 1

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        parts = x.new_empty(self.group.size * x.numel())
        self.group.all_gather(parts, x.view(-1))
        return merge_blocks(parts.view(self.group.size, *x.shape), self.dim, self.outer)


@dataclass(frozen=True, slots=True)
class reduce_scatter:
    """Sums over the group and keeps this rank's part of axis `dim`."""

    group: Group
    dim: int
    outer: int = 1

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        parts = split_blocks(x, self.dim, self.outer, self.group.size)
        mine = torch.empty_like(parts[0])
        self.group.reduce_scatter(mine.view(-1), parts.view(-1))
        return mine


@dataclass(frozen=True, slots=True)
class all_to_all:
    """Goes from parts along one axis to parts along another; each axis is given as (dim, outer)."""

    group: Group
    source: tuple[int, int]
    target: tuple[int, int]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        parts = split_blocks(x, *self.target, self.group.size)
        received = torch.empty_like(parts)
        self.group.all_to_all(received.view(-1), parts.view(-1))
        return merge_blocks(received, *self.source)


@dataclass(frozen=True, slots=True)
class exchange:
    """Goes from the regions `have` of axis `dim` to the regions `need`: each rank sends others the positions of its
    part that they need.

    With `sums`, positions that several ranks have are added, in the order of ranks.
    """

    group: Group
    dim: int
    outer: int = 1
    have: Regions = ()
    need: Regions = ()
    sums: bool = False

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        me = self.group.index
        found = pieces(self.have, self.need, me, sums=self.sums)
        shape = [*x.shape[: self.dim], self.outer, length(self.need[me]), *x.shape[self.dim + 1 :]]
        result = x.new_zeros(shape) if self.sums else x.new_empty(shape)
        parts = {p.peer: take_runs(x, self.dim, self.outer, p.sent).contiguous() for p in found if p.sent}
        into = {
            p.peer: x.new_empty([*x.shape[: self.dim], self.outer * length(p.received), *x.shape[self.dim + 1 :]])
            for p in found
            if p.received and p.peer != me
        }
        if needs_exchange(self.have, self.need, sums=self.sums):
            self.group.exchange(into, {peer: part for peer, part in parts.items() if peer != me})
        for piece in found:
            if piece.received:
                got = parts[me] if piece.peer == me else into[piece.peer]
                blocks = got.unflatten(self.dim, (self.outer, -1))  # type: ignore[no-untyped-call]
                for there, here in paired(result, blocks, self.dim + 1, piece.received):
                    there.add_(here) if self.sums else there.copy_(here)
        return result.flatten(self.dim, self.dim + 1)


@dataclass(frozen=True, slots=True)
class narrow:
    """Keeps this rank's part of a tensor that every rank has; no communication. `at` are parts given as regions."""

    group: Group
    dim: int
    outer: int = 1
    at: Regions | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return take(x, self.dim, self.outer, self.at or self.group.size, self.group.index).contiguous()


@dataclass(frozen=True, slots=True)
class keep_first:
    """Keeps the value on the first rank and makes zeros on the others, so that the sum over the group is the value.

    This copies. A view of a gathered weight (ZeRO-3, step/flat_params.py) would be gathered again in backward on one
    rank only, while the collective needs all ranks.
    """

    group: Group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone() if self.group.index == 0 else torch.zeros_like(x)


@dataclass(eq=False)
class _Regathered:
    """A value [...] that some steps gather, and gather again for backward."""

    x: torch.Tensor
    steps: Sequence[Step]
    world: World
    site: Place
    again: torch.Tensor | None = None

    def gathered_again(self) -> torch.Tensor:
        if self.again is None:
            self.again = _moved(self.x, self.steps, self.world, self.site)
        return self.again


class _Reshard(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        forward: Sequence[Step],
        backward: Sequence[Step],
        again: bool,
        world: World,
        site: Place,
    ) -> torch.Tensor:
        ctx.steps, ctx.world, ctx.site, ctx.gather = backward, world, site, None
        y = _moved(x, forward, world, site)
        if y is x and forward:
            ctx.mark_dirty(x)
        if again:
            ctx.gather = _Regathered(x.detach(), forward, world, site)
            world.gathered.note(y, ctx.gather)
        return x.view_as(x) if not forward else y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None, None]:
        if ctx.gather is not None:
            ctx.gather.again = None  # the backward of its readers has run
        return _moved(gradients[0], ctx.steps, ctx.world, ctx.site), None, None, None, None, None


def reshard(
    x: torch.Tensor, forward: Sequence[Step] = (), backward: Sequence[Step] = (), *, again: bool = False
) -> torch.Tensor:
    """Changes the layout of a tensor by the `forward` steps; its gradient takes the `backward` steps. With `again`
    autograd saves `x` and gathers the result again in backward, if the block also runs with `again`."""
    world = here()
    site = caller(world.layer)
    if x.requires_grad and torch.is_grad_enabled():
        return _Reshard.apply(x, forward, backward, again, world, site)  # type: ignore[no-any-return, no-untyped-call]
    return _moved(x, forward, world, site)


def _moved(x: torch.Tensor, steps: Sequence[Step], world: World, site: Place) -> torch.Tensor:
    """Applies the steps to a tensor; meanwhile the rank reports where in the program they stand."""
    world.site = site
    for step in steps:
        x = step(x)
    world.site = None
    return x
