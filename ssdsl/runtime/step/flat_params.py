"""Flat parameters: weights whose gradients are reduced together, and whose state is sharded together.

A flat parameter concatenates its weights into a tensor [elements], padded to a multiple of the shards. Where its state
is sharded (ZeRO; Rajbhandari et al. 2020), each rank updates a part, the `shard`: an equal one, or one as large as the
plan's portions say (`completion.py`). What is `held` of the weights between steps may be more:

| class | ZeRO | held between steps | optimizer steps on |
|---|---|---|---|
| `Replicated` | - | `parameters`, each in its own memory | `parameters` |
| `ShardedState` | 1, 2 | all: `held` [elements]; `parameters` and `shard` are views of it | `shard` |
| `ShardedWeights` | 3 | a part: `held` [elements / ranks]; weights are gathered where a module reads them | `shard` |

The shards of weights, gradients and optimizer state are nested (`Levels`): with four ranks in two nodes, weights may be
cut over the two ranks of a node, [elements / 2], and the optimizer's state over all four, [elements / 4].
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ..link.host import FromHost, HostLink, to_host
from ..profile.operator_clock import TimedPlace
from ..ranks.transport import PendingWork, Works
from ..ranks.world import Group
from .completion import CompletionStep, FlatCut, GradientCompletion, Levels
from .gradient_buckets import Bucket, Reduction

Tensors = Mapping[str, torch.Tensor]
Span = tuple[int, int] | None  # elements [start, stop) of a flattened weight; None is the whole weight in its shape


@dataclass(frozen=True, slots=True)
class Slot:
    """A weight in its flat parameter; its elements begin at `start`."""

    name: str
    shape: torch.Size
    start: int

    @property
    def stop(self) -> int:
        """The end of its elements."""
        return self.start + self.shape.numel()


@dataclass(frozen=True)
class Tie:
    """The ranks that sum the gradients of a weight that lives on several submeshes (tied embeddings of two stages).

    Of the ranks of one submesh with equal gradients, one `contributes`; the others add zeros.
    """

    group: Group
    contributes: bool


@dataclass(frozen=True)
class Stays:
    """The parts in which gathered weights stay through several tasks: those of a cut, or whole."""

    cut: FlatCut | None


class FlatWeights:
    """Weights that are reduced and sharded together; `number` is the flat parameter's number in the program.

    `parameters` are the weights that exist between steps. `completion` completes their gradients as the running program
    leaves them.
    """

    shard: torch.nn.Parameter | None = None
    levels = Levels()
    lies_on_host = False  # whether what this rank holds of the weights lies in the memory of the host
    bucket: Bucket  # of weights that exist between steps

    def __init__(self, number: int, values: Tensors, tied: Tie | None, parts: int) -> None:
        self.number, self.tied = number, tied
        self.completion = GradientCompletion()
        self._reduction: Reduction | None = None
        self.parameters: dict[str, torch.Tensor] = {}
        starts = [0, *itertools.accumulate(value.numel() for value in values.values())]
        self.slots = [Slot(n, v.shape, start) for (n, v), start in zip(values.items(), starts, strict=False)]
        self.used = starts[-1]
        self.elements = -(-self.used // parts) * parts  # along other axes ranks may have other sizes

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """The weights as views of a flat tensor [elements], each in its own shape."""
        return {s.name: flat[s.start : s.stop].view(s.shape) for s in self.slots}

    def concatenated(self, like: torch.Tensor, tensors: Iterable[torch.Tensor | None]) -> torch.Tensor:
        """Concatenates tensors of the weights' shapes: [elements], with zeros for None, in the type of `like`."""
        flat = like.new_empty(self.elements)
        for slot, tensor in zip(self.slots, tensors, strict=True):
            place = flat[slot.start : slot.stop]
            if tensor is None:
                place.zero_()
            else:
                place.copy_(tensor.reshape(-1))
        flat[self.used :].zero_()
        return flat

    # -- weights -----------------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, torch.Tensor]:
        """The weights for a module that reads them; the module passes them to `release` afterwards."""
        return self.parameters

    def release(self, weights: dict[str, torch.Tensor]) -> None:
        """Frees what `weights` has allocated for a module."""

    def gather(self) -> None:
        """Starts to gather the weights that other ranks have updated, up to what this rank holds; `settle` awaits
        them."""

    def settle(self) -> None:
        """Awaits the weights that other ranks have updated, if they are under way. All who read or write what this rank
        holds do so first: modules, checkpoints, the optimizer's next step."""

    def keep(self) -> None:
        """Keeps the weights that are gathered next, until `drop_kept`."""

    def drop_kept(self) -> None:
        """Frees the weights that were kept."""

    def finish(self) -> None:
        """The end of a step: awaits what is under way, and frees what was gathered for backward."""

    # -- what the optimizer steps on -----------------------------------------------------------------------------------

    def trained(self) -> Iterable[torch.Tensor]:
        """The tensors that the optimizer updates."""
        raise NotImplementedError

    def stepped(self) -> dict[str, tuple[Span, torch.Tensor]]:
        """The elements of each weight that are updated on this rank; the tensors share memory with `trained`.

        Weights without updated elements on this rank are left out.
        """
        raise NotImplementedError

    def gradients(self) -> dict[str, torch.Tensor | None]:
        """The completed gradient of each weight, cut as in `stepped`."""
        raise NotImplementedError

    # -- gradients ---------------------------------------------------------------------------------------------------

    def scatter_gradients(self) -> None:
        """Starts to reduce the gradients that a backward has left to the ranks that hold their parts."""

    def add_scattered(self) -> None:
        """Waits for what was scattered last, and adds it to what was scattered before."""

    def start_reduce(self) -> None:
        """Starts to complete the gradients; other work may run until `wait_reduce`."""

    def wait_reduce(self) -> None:
        """Waits for the reduction; then the completed gradients are where the optimizer finds them."""
        if self._reduction is not None:
            reduction, self._reduction = self._reduction, None
            self._put_gradient(reduction.wait())

    def _put_gradient(self, completed: torch.Tensor) -> None:
        """Puts the completed gradient where the optimizer finds it."""

    def _sum_tied(self, tied: Tie, gradient: torch.Tensor) -> None:
        """Sums a gradient over all submeshes on which a tied weight lives."""
        if not tied.contributes:
            gradient.zero_()
        with self.noted(tied.group):
            tied.group.all_reduce(gradient)

    def drop_gradients(self) -> None:
        """Frees the gradients: after a step, and before one if a step was given up."""
        self._reduction = None
        for parameter in self.trained():
            parameter.grad = None

    def run(self, steps: Iterable[CompletionStep], gradient: torch.Tensor) -> torch.Tensor:
        """The gradient after some steps of its completion."""
        for step in steps:
            with self.noted(step.group):
                gradient = step(gradient)
        return gradient

    @contextmanager
    def noted(self, group: Group) -> Iterator[None]:
        """A context in which the rank's collectives are reported as this flat parameter's."""
        world = group.world
        before, world.site = world.site, self.number
        yield
        world.site = before


class Replicated(FlatWeights):
    """Every rank has all of the weights and updates them; `completion` is nothing, an all_reduce, or an all_reduce of
    this rank's part, which is gathered afterwards."""

    def __init__(self, number: int, values: Tensors, tied: Tie | None, parts: int) -> None:
        super().__init__(number, values, tied, parts)
        self.parameters = {n: torch.nn.Parameter(v.clone()) for n, v in values.items()}
        self.bucket = Bucket(self)

    def trained(self) -> Iterable[torch.Tensor]:
        """The weights."""
        return self.parameters.values()

    def stepped(self) -> dict[str, tuple[Span, torch.Tensor]]:
        """All of each weight."""
        return {name: (None, parameter.detach()) for name, parameter in self.parameters.items()}

    def gradients(self) -> dict[str, torch.Tensor | None]:
        """All of each gradient."""
        return {name: parameter.grad for name, parameter in self.parameters.items()}

    def start_reduce(self) -> None:
        """Starts to sum the gradients over their ranks: all of them, or this rank's part."""
        if self.completion.once:
            self._reduction = Reduction(self, self.completion.once, self.bucket.filled())

    def wait_reduce(self) -> None:
        """Sums gradients of tied weights, too, one behind the other."""
        super().wait_reduce()
        if self.tied is not None:
            trained = [*self.trained()]
            gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in trained]
            flat = [gradient.contiguous().flatten() for gradient in gradients]
            together = flat[0] if len(flat) == 1 else torch.cat(flat)
            self._sum_tied(self.tied, together)
            for parameter, total in zip(trained, torch.split(together, [p.numel() for p in trained]), strict=True):
                parameter.grad = total.view_as(parameter)

    def _put_gradient(self, completed: torch.Tensor) -> None:
        self.bucket.put(completed)

    def drop_gradients(self) -> None:
        """Frees the bucket, too."""
        self._reduction = None
        self.bucket.drop()


class Sharded(FlatWeights):
    """Each rank updates its `shard` of the weights, a view of what it holds of them; see `Levels`.

    `held`: [elements / ranks over which the weights are cut].
    """

    shard: torch.nn.Parameter
    held: torch.Tensor

    def __init__(self, number: int, values: Tensors, tied: Tie | None, parts: int, levels: Levels) -> None:
        super().__init__(number, values, tied, parts)
        self.levels = levels
        self._updated: PendingWork | None = None  # the gather of what other ranks have updated
        self._scattering: Reduction | None = None
        self._sum: torch.Tensor | None = None  # of the gradients that were scattered

    def _shard_of(self, held: torch.Tensor) -> torch.Tensor:
        for cut in self.levels.updated:
            held = cut.part_of(held)
        return held

    def trained(self) -> Iterable[torch.Tensor]:
        """The shard."""
        return [self.shard]

    def stepped(self) -> dict[str, tuple[Span, torch.Tensor]]:
        """The elements of each weight that lie in the shard."""
        self.settle()
        return {name: (span, self.shard.detach()[part]) for name, span, part in self._in_shard()}

    def gradients(self) -> dict[str, torch.Tensor | None]:
        """The gradients of these elements."""
        gradient = self.shard.grad
        return {name: gradient[part] if gradient is not None else None for name, _, part in self._in_shard()}

    def _in_shard(self) -> Iterator[tuple[str, tuple[int, int], slice]]:
        """The weights that lie in this rank's shard: their elements, and the place of these in the shard."""
        first, size = 0, self.elements
        for cut in self.levels.cuts:
            start, stop = cut.span(size)
            first, size = first + start, stop - start
        for slot in self.slots:
            low, high = max(slot.start, first), min(slot.stop, first + size)
            if low < high:
                yield slot.name, (low - slot.start, high - slot.start), slice(low - first, high - first)

    def gather(self) -> None:
        """Starts to fill `held` from the shards. Of several groups the outermost one's gather is under way."""
        if not self.levels.updated:
            return
        self.settle()
        outer, *inner = self.levels.updated
        part = self.shard.detach().clone()
        for cut in reversed(inner):
            with self.noted(cut.group):
                part = cut.gathered(part)
        with self.noted(outer.group):
            self._updated = Works([outer.start_gather(self.held.detach(), part)], part)

    def settle(self) -> None:
        """Awaits the gather that fills `held`."""
        if self._updated is not None:
            work, self._updated = self._updated, None
            work.wait()

    # -- gradients ---------------------------------------------------------------------------------------------------

    def _left(self) -> torch.Tensor:
        """The gradient of `held` that backward has left."""
        raise NotImplementedError

    def _drop_left(self) -> None:
        """Frees what `_left` returns."""
        raise NotImplementedError

    def scatter_gradients(self) -> None:
        """Starts to reduce what backward has left to this rank's part."""
        self._scattering = Reduction(self, self.completion.each, self._left())
        self._drop_left()

    def add_scattered(self) -> None:
        """Waits for what was scattered last, and adds it to what was scattered before."""
        if self._scattering is not None:
            mine, self._scattering = self._scattering.wait(), None
            self._sum = mine if self._sum is None else self._sum.add_(mine)

    def start_reduce(self) -> None:
        """Starts to complete what was scattered, or else what backward has left."""
        if self.completion.each and self._scattering is None and self._sum is None:  # no backward has run here
            self.scatter_gradients()
        self.add_scattered()
        gradient = self._left() if self._sum is None else self._sum
        self._reduction, self._sum = Reduction(self, self.completion.once, gradient), None
        if self._reduction.gradient is not gradient:
            self._drop_left()

    def wait_reduce(self) -> None:
        """Waits also for what was scattered, if nothing else completes it."""
        self.add_scattered()
        if self._sum is not None:
            self._put_gradient(self._sum)
        elif self._reduction is None and self.tied is not None:
            self._put_gradient(self._mine())
        super().wait_reduce()

    def _mine(self) -> torch.Tensor:
        """This rank's part of gradients of which nothing is under way."""
        return torch.zeros_like(self.shard)

    def _put_gradient(self, completed: torch.Tensor) -> None:
        if self.tied is not None:
            self._sum_tied(self.tied, completed)
        with HostLink(completed.nbytes if self.lies_on_host else 0):
            self.shard.grad = completed.to(self.shard.device)

    def drop_gradients(self) -> None:
        """Frees what was summed, too."""
        super().drop_gradients()
        self._drop_left()
        self._scattering = self._sum = None


class ShardedState(Sharded):
    """Every rank has all of the weights, `held` [elements], and updates its shard (ZeRO-1 and -2)."""

    def __init__(self, number: int, values: Tensors, tied: Tie | None, parts: int, levels: Levels) -> None:
        super().__init__(number, values, tied, parts, levels)
        self.held = self.concatenated(next(iter(values.values())), values.values())
        self.shard = torch.nn.Parameter(self._shard_of(self.held))  # an update of this view changes the weights
        self.parameters = {n: torch.nn.Parameter(v) for n, v in self.views(self.held).items()}
        self.bucket = Bucket(self)

    def weights(self) -> dict[str, torch.Tensor]:
        """All weights, once the last update has arrived."""
        self.settle()
        return self.parameters

    def _left(self) -> torch.Tensor:
        return self.bucket.filled()

    def _drop_left(self) -> None:
        self.bucket.drop()


class ShardedWeights(Sharded):
    """Each rank holds a part of the weights; these are gathered for a module, and freed after it (ZeRO-3).

    Between `keep` and `drop_kept` what is gathered first stays, as `stays` says: whole, [elements], so that nothing is
    gathered again, and gradients are added up until `scatter_gradients`; or in the parts of a smaller group.

    What is `held` may lie in the memory of the host: each gather copies it to the device, and the completed gradient
    goes there, where the optimizer steps.
    """

    held: torch.nn.Parameter

    def __init__(
        self,
        number: int,
        values: Tensors,
        tied: Tie | None,
        parts: int,
        levels: Levels,
        weights: FlatCut,
        ahead: int,
        stays: Stays | None,
        lies_on_host: bool,
    ) -> None:
        super().__init__(number, values, tied, parts, levels)
        self.cut, self.group = weights, weights.group
        self.ahead, self.stays, self.lies_on_host = ahead, stays, lies_on_host
        self._keeps = False
        self._kept: torch.Tensor | None = None
        self._gradient: torch.Tensor | None = None  # of weights that stay whole, [elements]
        self._on_device: torch.Tensor | None = None  # the gradient of what is held on the host, so far
        whole = self.concatenated(next(iter(values.values())), values.values())
        self._like = whole.new_empty(0)  # on the device
        part = weights.part_of(whole)
        self.held = torch.nn.Parameter(to_host(part) if lies_on_host else part.clone())
        self.shard = torch.nn.Parameter(self._shard_of(self.held.detach())) if levels.updated else self.held
        self._again: torch.Tensor | None = None
        self._coming: deque[tuple[torch.Tensor, PendingWork]] = deque()  # gathers that nobody has awaited yet
        self._arriving: Reduction | None = None  # of the last gradients, to this rank's part

    @property
    def stays_whole(self) -> bool:
        """Whether gathered weights stay whole, and their gradients with them."""
        return self.stays is not None and self.stays.cut is None

    def keep(self) -> None:
        """Keeps what is gathered next."""
        self._keeps = True

    def drop_kept(self) -> None:
        """Frees what was kept."""
        self._keeps, self._kept = False, None

    def _left(self) -> torch.Tensor:
        if self.stays_whole:
            return self._like.new_zeros(self.elements) if self._gradient is None else self._gradient
        self.take_scattered()
        if self.part is None:
            self.part = self._like.new_zeros(self.held.numel())
        return self.part

    def _mine(self) -> torch.Tensor:
        return self._left()

    def _drop_left(self) -> None:
        self.part = self._gradient = None

    @property
    def part(self) -> torch.Tensor | None:
        """The gradient of what is held, so far, on the device."""
        return self._on_device if self.lies_on_host else self.held.grad

    @part.setter
    def part(self, gradient: torch.Tensor | None) -> None:
        if self.lies_on_host:
            self._on_device = gradient
        else:
            self.held.grad = gradient

    def drop_gradients(self) -> None:
        """Forgets what is under way and what was kept, too."""
        super().drop_gradients()
        self.drop_kept()
        self._coming.clear()
        self._arriving = None

    def weights(self) -> dict[str, torch.Tensor]:
        """All weights, gathered; backward reduces their gradients to the shard's."""
        with self.timed("gather"):
            gathered = self._gathered()
            self.group.world.gathered.note(gathered, self)
            with torch.enable_grad():  # the first reader may need no gradient while a later one does
                views = _Gather.apply(self.held, self, gathered)  # type: ignore[no-untyped-call]
            return dict(zip((s.name for s in self.slots), views, strict=True))

    def release(self, weights: dict[str, torch.Tensor]) -> None:
        """Frees the gathered weights, and counts the time that takes."""
        with self.timed("drop"):
            weights.clear()

    def made_again(self) -> torch.Tensor:
        """The weights [elements] for backward, gathered once until the gradients have been reduced."""
        if self._again is None:
            with self.timed("gather"):
                self._again = self._gathered()
        return self._again

    def drop(self) -> None:
        """Frees what `made_again` keeps."""
        self._again = None

    def finish(self) -> None:
        """Awaits the last gradients, too; nothing else may complete them."""
        self.take_scattered()
        self.drop()
        if self.lies_on_host and self.part is not None and self.shard.grad is None:
            self._put_gradient(self.part)

    def timed(self, what: str) -> AbstractContextManager[Any]:
        """A context whose time counts for this flat parameter, not for the operator that reads it."""
        tracer = self.group.world.tracer
        return tracer.aside(TimedPlace(what, self.number)) if tracer is not None else nullcontext()

    # -- what is under way ---------------------------------------------------------------------------------------------

    def start_gather(self) -> None:
        """Starts to gather the weights for their next reader, unless they are there."""
        if self.stays_whole and (self._kept is not None or (self._keeps and self._coming)):
            return
        self.settle()
        part, cut = self.held.detach(), self.cut
        if self._kept is not None and self.stays is not None and self.stays.cut is not None:
            part, cut = self._kept, self.stays.cut
        whole = self._like.new_empty(self.elements)
        if self.lies_on_host and cut is self.cut:
            copied = FromHost(part, mine := cut.part_of(whole))
            with copied, self.noted(cut.group):
                self._coming.append((whole, Works([copied, cut.start_gather(whole, mine)])))
            return
        with self.noted(cut.group):
            self._coming.append((whole, cut.start_gather(whole, part)))

    def _gathered(self) -> torch.Tensor:
        """All weights [elements], gathered from what the ranks hold: now, if no gather has started ahead."""
        if self.stays_whole and self._kept is not None:
            whole = self._kept
        else:
            if not self._coming:
                self.start_gather()
            whole, work = self._coming.popleft()
            work.wait()
            if self._keeps and self._kept is None and self.stays is not None:
                cut = self.stays.cut
                self._kept = whole if cut is None else cut.part_of(whole).clone()
        self.group.world.ahead.awaited(self)
        return whole

    def take(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Takes the weights' gradients of a task: starts to reduce them to this rank's part, [elements / ranks], or
        adds them to those of the tasks before."""
        if not self.stays_whole:
            self._scatter(gradients)
        elif self._gradient is None:
            self._gradient = self.concatenated(self._like, gradients)
        else:
            for slot, gradient in zip(self.slots, gradients, strict=True):
                if gradient is not None:
                    self._gradient[slot.start : slot.stop].add_(gradient.reshape(-1))

    def _scatter(self, gradients: Iterable[torch.Tensor | None]) -> None:
        self.group.world.ahead.reduces(self.take_scattered)
        self._arriving = Reduction(self, self.completion.in_backward, self.concatenated(self._like, gradients))

    def take_scattered(self) -> None:
        """Awaits the reduction that is under way, and adds what it gives to the gradients before."""
        if self._arriving is not None:
            mine, self._arriving = self._arriving.wait(), None
            self.part = mine if self.part is None else self.part.add_(mine)


class _Gather(torch.autograd.Function):
    """The weights of a flat parameter, gathered from what ranks hold; backward reduces their gradients to that.

    [elements / ranks] -> each weight in its shape. `gathered` [elements] is an argument so that it can be freed. The
    gradients of `held` are added to it when they arrive.
    """

    @staticmethod
    def forward(ctx: Any, held: torch.Tensor, flat: ShardedWeights, gathered: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.flat, ctx.place = flat, TimedPlace("scatter", flat.number)
        return tuple(flat.views(gathered).values())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[None, None, None]:
        flat: ShardedWeights = ctx.flat
        with flat.timed("scatter"):
            flat.drop()  # what reads the weights has run
            flat.take(gradients)
        return None, None, None


def make_flat_param(
    number: int,
    values: Tensors,
    levels: Levels,
    tied: Tie | None,
    parts: int,
    ahead: int = 0,
    stays: Stays | None = None,
    lies_on_host: bool = False,
) -> FlatWeights:
    """The flat parameter of these weights, with their state sharded over the groups of the levels. Its length is a
    multiple of `parts`, so that its completion can cut it; weights are gathered `ahead` of their readers, and those
    that are kept stay as `stays` says. What is held of gathered ones may lie on the host."""
    if not levels.cuts:
        return Replicated(number, values, tied, parts)
    if levels.weights is None:
        return ShardedState(number, values, tied, parts, levels)
    return ShardedWeights(number, values, tied, parts, levels, levels.weights, ahead, stays, lies_on_host)
