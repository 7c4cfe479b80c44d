"""Collectives as steps, and `reshard`, which applies some steps to a tensor and others to its gradient.

A step is a function from the local tensor in one layout to the local tensor in the next. With n ranks in the group, and
the axis `dim` viewed as (outer, count, rest):

| step | x | result |
|---|---|---|
| `all_reduce`, `keep_first` | [...] | [...] |
| `all_gather` | [..., outer * rest, ...] | [..., outer * n * rest, ...] |
| `reduce_scatter`, `narrow` | [..., outer * n * rest, ...] | [..., outer * rest, ...] |
| `exchange` | [..., outer * positions of `have`, ...] | [..., outer * positions of `need`, ...] |
| `all_to_all` | n times as long along the digits of `target` | n times as long along those of `source` |
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..layout.cut import Digit, merge_blocks, merge_digits, paired, split_blocks, split_digits, take, take_runs
from ..layout.regions import Regions, length, needs_exchange, pieces
from .regather import Kept, unpacked
from .role_place import Place, caller
from .world import Group, World, here

Step = Callable[[torch.Tensor], torch.Tensor]
COMPILED = "CompiledFunctionBackward"  # torch.compile's node of autograd


def all_reduce(group: Group) -> Step:
    """Sums over the group."""
    in_place = all_reduce_(group)
    return lambda x: in_place(x.clone(memory_format=torch.contiguous_format))


def all_reduce_(group: Group) -> Step:
    """Sums over the group, in place: for a tensor that nothing else reads."""

    def step(x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        group.all_reduce(x)
        return x

    return step


def all_gather(group: Group, dim: int, outer: int = 1) -> Step:
    """Concatenates the parts of the group along axis `dim`; each of the `outer` blocks has one block per rank."""

    def step(x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        parts = x.new_empty(group.size * x.numel())
        group.all_gather(parts, x.view(-1))
        return merge_blocks(parts.view(group.size, *x.shape), dim, outer)

    return step


def reduce_scatter(group: Group, dim: int, outer: int = 1) -> Step:
    """Sums over the group and keeps this rank's part of axis `dim`."""

    def step(x: torch.Tensor) -> torch.Tensor:
        parts = split_blocks(x, dim, outer, group.size)
        mine = torch.empty_like(parts[0])
        group.reduce_scatter(mine.view(-1), parts.view(-1))
        return mine

    return step


def all_to_all(group: Group, source: Sequence[Digit], target: Sequence[Digit]) -> Step:
    """Goes from parts by some digits to parts by others. The rank's number in the group has a part of each digit, that
    of the last one innermost."""

    def step(x: torch.Tensor) -> torch.Tensor:
        parts = split_digits(x, target)
        received = torch.empty_like(parts)
        group.all_to_all(received.view(-1), parts.view(-1))
        return merge_digits(received, source)

    return step


def exchange(
    group: Group, dim: int, outer: int = 1, have: Regions = (), need: Regions = (), sums: bool = False
) -> Step:
    """Goes from the regions `have` of axis `dim` to the regions `need`: each rank sends others the positions of its
    part that they need.

    With `sums`, positions that several ranks have are added, in the order of ranks.
    """

    def step(x: torch.Tensor) -> torch.Tensor:
        me = group.index
        found = pieces(have, need, me, sums=sums)
        shape = [*x.shape[:dim], outer, length(need[me]), *x.shape[dim + 1 :]]
        result = x.new_zeros(shape) if sums else x.new_empty(shape)
        parts = {p.peer: take_runs(x, dim, outer, p.sent).contiguous() for p in found if p.sent}
        into = {
            p.peer: x.new_empty([*x.shape[:dim], outer * length(p.received), *x.shape[dim + 1 :]])
            for p in found
            if p.received and p.peer != me
        }
        if needs_exchange(have, need, sums=sums):
            group.exchange(into, {peer: part for peer, part in parts.items() if peer != me})
        for piece in found:
            if piece.received:
                got = parts[me] if piece.peer == me else into[piece.peer]
                blocks = got.unflatten(dim, (outer, -1))  # type: ignore[no-untyped-call]
                for there, here in paired(result, blocks, dim + 1, piece.received):
                    there.add_(here) if sums else there.copy_(here)
        return result.flatten(dim, dim + 1)

    return step


def narrow(group: Group, dim: int, outer: int = 1, at: Regions | None = None) -> Step:
    """Keeps this rank's part of a tensor that every rank has; no communication. `at` are parts given as regions."""
    return lambda x: take(x, dim, outer, at or group.size, group.index).contiguous()


def keep_first(group: Group) -> Step:
    """Keeps the value on the first rank and makes zeros on the others, so that the sum over the group is the value.

    This copies. A view of a gathered weight (ZeRO-3, step/flat_params.py) would be gathered again in backward on one
    rank only, while the collective needs all ranks.
    """
    return lambda x: x.clone() if group.index == 0 else torch.zeros_like(x)


@dataclass(eq=False)
class _Regathered:
    """A value [...] that some steps gather, and gather again for backward. `kept` is the value, or its source."""

    kept: Kept
    steps: Sequence[Step]
    world: World
    site: Place
    again: torch.Tensor | None = None

    def made_again(self) -> torch.Tensor:
        if self.again is None:
            self.again = _moved(unpacked(self.kept), self.steps, self.world, self.site)
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
        y = _moved(x.detach() if _is_compiled_view(x) else x, forward, world, site)
        if y is x and forward:
            ctx.mark_dirty(x)
        if again:
            ctx.gather = _Regathered(world.gathered.packed(x.detach()), forward, world, site)
            world.gathered.note(y, ctx.gather)
        return x.view_as(x) if not forward else y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None, None]:
        if ctx.gather is not None:
            ctx.gather.again = None  # the backward of its readers has run
        return _moved(gradients[0], ctx.steps, ctx.world, ctx.site), None, None, None, None, None


def _is_compiled_view(x: torch.Tensor) -> bool:
    """Whether autograd lets nobody change a tensor in place: a view that a function of torch.compile returns."""
    return x._is_view() and x.grad_fn is not None and x.grad_fn.name() == COMPILED


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


# -- rows that are sorted by their experts -----------------------------------------------------------------------------


def rows_to_all(
    group: Group, source: Sequence[Digit], target: Sequence[Digit], before: torch.Tensor, after: torch.Tensor
) -> Step:
    """A ragged `all_to_all` along the first axis, of runs of rows: `before` are the lengths of this rank's runs,
    `after` those of the received runs. The digits of `source` and `target` are digits of the runs' numbers.

    The lengths of the runs are known only at run time (`count_rows`). Both ends know them from the counts, which were
    sent before as an ordinary tensor.
    """

    def step(x: torch.Tensor) -> torch.Tensor:
        leaving = _numbers(before, target)  # for each rank the runs that it receives
        arriving = _numbers(after, source)  # for each rank the runs that it sends
        rows = torch.stack([before[leaving].sum(1), after[arriving].sum(1)]).tolist()
        parts = x.contiguous() if _are_in_order(target) else _in_order(x, before, leaving.flatten())
        received = x.new_empty(sum(rows[1]), *x.shape[1:])
        group.all_to_all(received, parts, (rows[1], rows[0]))
        if _are_in_order(source):
            return received
        order = arriving.flatten()
        return _in_order(received, after[order], order.argsort())

    return step


def _numbers(runs: torch.Tensor, digits: Sequence[Digit]) -> torch.Tensor:
    """For each rank, the numbers of the runs that have its values of the digits, in order."""
    return split_digits(torch.arange(runs.shape[0], device=runs.device), digits)


def _are_in_order(digits: Sequence[Digit]) -> bool:
    """Whether the runs of each rank lie behind those of the rank before it."""
    return len(digits) == 1 and digits[0][1] == 1


def _in_order(x: torch.Tensor, lengths: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Permutes runs of these lengths.

    >>> _in_order(torch.arange(6), torch.tensor([1, 2, 3]), torch.tensor([2, 0, 1])).tolist()
    [3, 4, 5, 0, 1, 2]
    """
    starts, sizes = (lengths.cumsum(0) - lengths)[order], lengths[order]
    here = torch.arange(x.shape[0], device=x.device)
    return x.index_select(0, here + (starts - (sizes.cumsum(0) - sizes)).repeat_interleave(sizes))
