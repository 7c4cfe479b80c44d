"""Collectives as steps, and `reshard`, which applies some steps to a tensor and others to its gradient.

A step goes from the local tensor in one layout to the local tensor in the next. With n ranks in the group, and
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
from functools import partial
from typing import Any, NamedTuple

import torch

from ..layout.cut import Digit, merge_blocks, merge_digits, paired, split_blocks, split_digits, take, take_runs
from ..layout.regions import Regions, length, needs_exchange, pieces
from .numbers import read_rows
from .regather import Kept, unpacked
from .role_place import Place, caller
from .transport import PendingWork, Works
from .world import Group, World, here

COMPILED = "CompiledFunctionBackward"  # torch.compile's node of autograd
Result = Callable[[], torch.Tensor]
DONE = Works(())


class InFlight(NamedTuple):
    """A step that has started. `sent` must not change until it is awaited; then `result` makes the tensor of what has
    arrived."""

    work: PendingWork
    result: Result
    sent: Any = None

    def wait(self) -> torch.Tensor:
        """Blocks until the step is done; the tensor in the new layout."""
        self.work.wait()
        return self.result()


class ReshardStep(NamedTuple):
    """A step along a group: `start` begins to communicate, a call also awaits the end."""

    start: Callable[[torch.Tensor], InFlight]
    travels: bool = True

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The tensor in the new layout."""
        return self.start(x).wait()


def _local(result: Callable[[torch.Tensor], torch.Tensor]) -> ReshardStep:
    """A step in which nothing travels."""
    return ReshardStep(lambda x: InFlight(DONE, partial(result, x)), travels=False)


def all_reduce(group: Group) -> ReshardStep:
    """Sums over the group."""
    in_place = all_reduce_(group).start
    return ReshardStep(lambda x: in_place(x.clone(memory_format=torch.contiguous_format)))


def all_reduce_(group: Group) -> ReshardStep:
    """Sums over the group, in place: for a tensor that nothing else reads."""

    def start(x: torch.Tensor) -> InFlight:
        x = x.contiguous()
        return InFlight(group.start_all_reduce(x), lambda: x)

    return ReshardStep(start)


def all_gather(group: Group, dim: int, outer: int = 1) -> ReshardStep:
    """Concatenates the parts of the group along axis `dim`; each of the `outer` blocks has one block per rank."""

    def start(x: torch.Tensor) -> InFlight:
        x = x.contiguous()
        parts = x.new_empty(group.size * x.numel())
        work = group.start_all_gather(parts, x.view(-1))
        return InFlight(work, lambda: merge_blocks(parts.view(group.size, *x.shape), dim, outer))

    return ReshardStep(start)


def reduce_scatter(group: Group, dim: int, outer: int = 1) -> ReshardStep:
    """Sums over the group and keeps this rank's part of axis `dim`."""

    def start(x: torch.Tensor) -> InFlight:
        parts = split_blocks(x, dim, outer, group.size)
        mine = torch.empty_like(parts[0])
        return InFlight(group.start_reduce_scatter(mine.view(-1), parts.view(-1)), lambda: mine, parts)

    return ReshardStep(start)


def all_to_all(group: Group, source: Sequence[Digit], target: Sequence[Digit]) -> ReshardStep:
    """Goes from parts by some digits to parts by others. The rank's number in the group has a part of each digit, that
    of the last one innermost."""

    def start(x: torch.Tensor) -> InFlight:
        parts = split_digits(x, target)
        received = torch.empty_like(parts)
        work = group.start_all_to_all(received.view(-1), parts.view(-1))
        return InFlight(work, lambda: merge_digits(received, source), parts)

    return ReshardStep(start)


def exchange(
    group: Group, dim: int, outer: int = 1, have: Regions = (), need: Regions = (), sums: bool = False
) -> ReshardStep:
    """Goes from the regions `have` of axis `dim` to the regions `need`: each rank sends others the positions of its
    part that they need.

    With `sums`, positions that several ranks have are added, in the order of ranks.
    """

    def start(x: torch.Tensor) -> InFlight:
        me = group.index
        moved = pieces(have, need, me, sums=sums)
        parts = {p.peer: take_runs(x, dim, outer, p.sent).contiguous() for p in moved if p.sent}
        into = {
            p.peer: x.new_empty([*x.shape[:dim], outer * length(p.received), *x.shape[dim + 1 :]])
            for p in moved
            if p.received and p.peer != me
        }
        work: PendingWork = DONE
        if needs_exchange(have, need, sums=sums):
            work = group.start_exchange(into, {peer: part for peer, part in parts.items() if peer != me})

        def result() -> torch.Tensor:
            shape = [*x.shape[:dim], outer, length(need[me]), *x.shape[dim + 1 :]]
            joined = x.new_zeros(shape) if sums else x.new_empty(shape)
            for piece in moved:
                if piece.received:
                    got = parts[me] if piece.peer == me else into[piece.peer]
                    blocks = got.unflatten(dim, (outer, -1))  # type: ignore[no-untyped-call]
                    for there, here in paired(joined, blocks, dim + 1, piece.received):
                        there.add_(here) if sums else there.copy_(here)
            return joined.flatten(dim, dim + 1)

        return InFlight(work, result, parts)

    return ReshardStep(start)


def narrow(group: Group, dim: int, outer: int = 1, at: Regions | None = None) -> ReshardStep:
    """Keeps this rank's part of a tensor that every rank has; no communication. `at` are parts given as regions."""
    return _local(lambda x: take(x, dim, outer, at or group.size, group.index).contiguous())


def keep_first(group: Group) -> ReshardStep:
    """Keeps the value on the first rank and makes zeros on the others, so that the sum over the group is the value.

    This copies. A view of a gathered weight (ZeRO-3, step/flat_params.py) would be gathered again in backward on one
    rank only, while the collective needs all ranks.
    """
    return _local(lambda x: x.clone() if group.index == 0 else torch.zeros_like(x))


# -- on tensors of autograd --------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Regathered:
    """A value [...] that some steps gather, and gather again for backward. `kept` is the value, or its source."""

    kept: Kept
    steps: Sequence[ReshardStep]
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
        forward: Sequence[ReshardStep],
        backward: Sequence[ReshardStep],
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
    x: torch.Tensor, forward: Sequence[ReshardStep] = (), backward: Sequence[ReshardStep] = (), *, again: bool = False
) -> torch.Tensor:
    """Changes the layout of a tensor by the `forward` steps; its gradient takes the `backward` steps. With `again`
    autograd saves `x` and gathers the result again in backward, if the block also runs with `again`."""
    world = here()
    site = caller(world.layer)
    if x.requires_grad and torch.is_grad_enabled():
        return _Reshard.apply(x, forward, backward, again, world, site)  # type: ignore[no-any-return, no-untyped-call]
    return _moved(x, forward, world, site)


def _moved(x: torch.Tensor, steps: Sequence[ReshardStep], world: World, site: Place) -> torch.Tensor:
    """Applies the steps to a tensor; meanwhile the rank reports where in the program they stand."""
    world.site = site
    for step in steps:
        x = step(x)
    world.site = None
    return x


# -- started before they are awaited -----------------------------------------------------------------------------------


@dataclass(eq=False)
class Journey:
    """Steps that a tensor and later its gradient take, and which of them are in flight."""

    backward: Sequence[ReshardStep]
    world: World
    site: Place
    arriving: InFlight | None = None

    def start(self, x: torch.Tensor, steps: Sequence[ReshardStep]) -> None:
        """Takes the steps up to the last one that travels, which it starts; those after it follow when it is
        awaited."""
        count = max((n for n, step in enumerate(steps, 1) if step.travels), default=0)
        last = steps[count - 1] if count else _local(lambda x: x)
        x = _moved(x, steps[: max(0, count - 1)], self.world, self.site)
        self.world.site = self.site
        begun = last.start(x)
        self.world.site = None
        rest = steps[count:]
        self.arriving = InFlight(begun, lambda: _moved(begun.result(), rest, self.world, self.site))

    def start_back(self, gradient: torch.Tensor) -> torch.Tensor:
        """Starts the way of the gradient; the gradient of the ticket, which awaits it."""
        self.start(gradient, self.backward)
        return gradient.new_empty(0)

    def wait(self) -> torch.Tensor:
        """Blocks until the steps are done; the tensor in the new layout."""
        arriving, self.arriving = self.arriving, None
        assert arriving is not None
        return arriving.wait()


class StartedReshard(NamedTuple):
    """A tensor on its way to another layout. `ticket`, a tensor without elements, leads autograd from the wait to the
    start; None if there is no gradient. If another task awaits it, autograd leads to the ticket alone: its gradient has
    no elements either, and that of the tensor starts its way by `journey.start_back`."""

    journey: Journey
    ticket: torch.Tensor | None

    def wait(self) -> torch.Tensor:
        """Blocks until it has arrived; the tensor in the new layout. The gradient starts its way here, and is awaited
        where this one started."""
        if self.ticket is None:
            return self.journey.wait()
        return _Await.apply(self.ticket, self.journey)  # type: ignore[no-any-return, no-untyped-call]


def start_reshard(
    x: torch.Tensor, forward: Sequence[ReshardStep] = (), backward: Sequence[ReshardStep] = ()
) -> StartedReshard:
    """Starts to change the layout of a tensor, as `reshard` does. Until the `wait` nobody may change the tensor."""
    world = here()
    journey = Journey(backward, world, caller(world.layer))
    if x.requires_grad and torch.is_grad_enabled():
        return StartedReshard(journey, _Start.apply(x, forward, journey))  # type: ignore[no-untyped-call]
    journey.start(x, forward)
    return StartedReshard(journey, None)


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: Sequence[ReshardStep], journey: Journey) -> torch.Tensor:
        ctx.journey = journey
        journey.start(x.detach(), forward)
        return x.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.journey.wait(), None, None


class _Await(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ticket: torch.Tensor, journey: Journey) -> torch.Tensor:
        ctx.journey = journey
        return journey.wait()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = gradients
        return ctx.journey.start_back(gradient), None


# -- rows that are sorted by their experts -----------------------------------------------------------------------------


def rows_to_all(
    group: Group, source: Sequence[Digit], target: Sequence[Digit], before: torch.Tensor, after: torch.Tensor
) -> ReshardStep:
    """A ragged `all_to_all` along the first axis, of runs of rows: `before` are the lengths of this rank's runs,
    `after` those of the received runs. The digits of `source` and `target` are digits of the runs' numbers.

    The lengths of the runs are known only at run time (`count_rows`). Both ends know them from the counts, which were
    sent before as an ordinary tensor.
    """

    def start(x: torch.Tensor) -> InFlight:
        leaving, arriving = read_rows(before, after)
        parts = x if _are_in_order(target) else _in_order(x, before, _numbers(before, target).flatten())
        parts, received = parts.contiguous(), x.new_empty(sum(arriving), *x.shape[1:])
        work = group.start_all_to_all(received, parts, (_by_rank(arriving, source), _by_rank(leaving, target)))
        if _are_in_order(source):
            return InFlight(work, lambda: received, parts)
        order = _numbers(after, source).flatten()
        return InFlight(work, lambda: _in_order(received, after[order], order.argsort()), parts)

    return ReshardStep(start)


def _numbers(runs: torch.Tensor, digits: Sequence[Digit]) -> torch.Tensor:
    """For each rank, the numbers of the runs that have its values of the digits, in order."""
    return split_digits(torch.arange(runs.shape[0], device=runs.device), digits)


def _by_rank(lengths: list[int], digits: Sequence[Digit]) -> list[int]:
    """For each rank, the rows in the runs that have its values of the digits; computed on the host."""
    return split_digits(torch.tensor(lengths), digits).sum(1).tolist()


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
    return x.index_select(0, here + (starts - (sizes.cumsum(0) - sizes)).repeat_interleave(sizes, output_size=len(x)))
