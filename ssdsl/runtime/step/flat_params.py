"""Flat parameters: weights whose gradients are reduced together, and whose state is sharded together.

A flat parameter concatenates its weights into a tensor [elements], padded to a multiple of the shards. If its state is
sharded over a group (ZeRO; Rajbhandari et al. 2020), each rank owns an equal part, the shard [elements / ranks]. `zero`
chooses among these storages:

| class | ZeRO | held between steps | optimizer steps on |
|---|---|---|---|
| `Replicated` | - | `parameters`, each in its own memory | `parameters` |
| `ShardedState` | 1, 2 | `flat` [elements]; `parameters` and `shard` are views of it | `shard` |
| `ShardedWeights` | 3 | `shard`; weights are gathered where a module reads them | `shard` |
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..profile.operator_clock import TimedPlace
from ..ranks.transport import PendingWork
from ..ranks.world import Group

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
class Completion:
    """A step from the gradient after backward to the one that the optimizer needs.

    For a flat gradient [n]: `all_reduce` gives the sum over the group, [n]; `reduce_scatter` this rank's part of the
    sum, [n / ranks]; `chunk` this rank's part of a gradient that is equal on all ranks, [n / ranks]; `all_gather` joins
    the ranks' parts, [n * ranks].
    """

    kind: str
    group: Group

    def __call__(self, flat: torch.Tensor) -> torch.Tensor:
        match self.kind:
            case "all_reduce":
                self.group.all_reduce(flat)
                return flat
            case "reduce_scatter":
                mine = flat.new_empty(flat.numel() // self.group.size)
                self.group.reduce_scatter(mine, flat)
                return mine
            case "all_gather":
                whole = flat.new_empty(flat.numel() * self.group.size)
                self.group.all_gather(whole, flat)
                return whole
            case _:
                return self.part_of(flat).clone()

    def part_of(self, flat: torch.Tensor) -> torch.Tensor:
        """This rank's part of a flat tensor: a view."""
        return flat.chunk(self.group.size)[self.group.index]


class FlatWeights:
    """Weights that are reduced and sharded together; `number` is the flat parameter's number in the program.

    `parameters` are the weights that exist between steps. `completion` completes their gradients as the running program
    leaves them.
    """

    shard: torch.nn.Parameter | None = None
    shard_group: Group | None = None

    def __init__(self, number: int, values: Tensors, tied: Tie | None, parts: int) -> None:
        self.number, self.tied = number, tied
        self.completion: list[Completion] = []
        self.parameters: dict[str, torch.Tensor] = {}
        starts = [0, *itertools.accumulate(value.numel() for value in values.values())]
        self.slots = [Slot(n, v.shape, start) for (n, v), start in zip(values.items(), starts, strict=False)]
        self.used = starts[-1]
        self.elements = -(-self.used // parts) * parts  # along other axes ranks may have other sizes

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """The weights as views of a flat tensor [elements], each in its own shape."""
        return {s.name: flat[s.start : s.stop].view(s.shape) for s in self.slots}

    def laid(self, like: torch.Tensor, tensors: Iterable[torch.Tensor | None]) -> torch.Tensor:
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
        """Gathers the weights that other ranks updated (ZeRO-1 and -2)."""

    def drop(self) -> None:
        """Frees what was gathered for backward."""

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

    def start_reduce(self) -> None:
        """Starts to complete the gradients; other work may run until `wait_reduce`."""

    def wait_reduce(self) -> None:
        """Waits for the reduction; then the completed gradients are where the optimizer finds them."""
        if self.tied is None:
            return
        for parameter in self.trained():
            if parameter.grad is None or not self.tied.contributes:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad = parameter.grad.contiguous()
            with self._noted(self.tied.group):
                self.tied.group.all_reduce(parameter.grad)

    def drop_gradients(self) -> None:
        """Frees the gradients: after a step, and before one if a step was given up."""
        for parameter in self.trained():
            parameter.grad = None

    def complete(self, flat: torch.Tensor) -> torch.Tensor:
        """This rank's part [elements / ranks] of the completed gradient [elements]."""
        for step in self.completion:
            with self._noted(step.group):
                flat = step(flat)
        return flat

    @contextmanager
    def _noted(self, group: Group) -> Iterator[None]:
        """A context in which the rank's collectives are reported as this flat parameter's."""
        world = group.world
        before, world.site = world.site, self.number
        yield
        world.site = before


class Bucket:
    """The concatenated gradients of a flat parameter, [elements]: each weight's `grad` is a view of it.

    Backward fills it, as in DistributedDataParallel with `gradient_as_bucket_view`: the first gradient of a weight
    moves into its slot as soon as autograd has computed it, and later ones are added there, so the bucket is reduced
    without a copy. It is allocated when the first gradient comes. Without a completion, gradients stay where autograd
    leaves them.
    """

    def __init__(self, flat: FlatWeights) -> None:
        self.flat = flat
        self._whole: torch.Tensor | None = None
        self._slots: dict[str, torch.Tensor] = {}
        for name, parameter in flat.parameters.items():
            parameter.register_post_accumulate_grad_hook(partial(self._put, name))  # type: ignore[no-untyped-call]

    def _put(self, name: str, parameter: torch.Tensor) -> None:
        if not self.flat.completion or parameter.grad is None:
            return
        if self._whole is None:
            self._whole = parameter.new_empty(self.flat.elements)
            self._slots = self.flat.views(self._whole)
        slot = self._slots[name]
        if parameter.grad is not slot:
            parameter.grad = slot.copy_(parameter.grad)

    def filled(self) -> torch.Tensor:
        """The whole bucket, with zeros for weights without gradient."""
        for name, parameter in self.flat.parameters.items():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self._put(name, parameter)  # the second half of a split backward sets gradients without a hook
        assert self._whole is not None
        self._whole[self.flat.used :].zero_()
        return self._whole

    def drop(self) -> None:
        """Frees the gradients."""
        for parameter in self.flat.parameters.values():
            parameter.grad = None
        self._whole, self._slots = None, {}


class Replicated(FlatWeights):
    """Every rank has all of the weights and updates them; `completion` is nothing, an all_reduce, or an all_reduce of
    this rank's part, which is gathered afterwards."""

    def __init__(self, number: int, values: Tensors, tied: Tie | None, parts: int) -> None:
        super().__init__(number, values, tied, parts)
        self.parameters = {n: torch.nn.Parameter(v.clone()) for n, v in values.items()}
        self.bucket = Bucket(self)
        self._started: PendingWork | None = None
        self._part: torch.Tensor | None = None  # of the bucket: what is summed

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
        if not self.completion:
            return
        self._part = self.bucket.filled()
        for step in self.completion:
            if step.kind == "chunk":
                self._part = step.part_of(self._part)
            elif step.kind == "all_reduce":
                with self._noted(step.group):
                    self._started = step.group.start_all_reduce(self._part)

    def wait_reduce(self) -> None:
        """Waits until the bucket has the sum: parts of it are gathered."""
        if self._started is not None:
            self._started.wait()
            self._gather_sum()
            self._started = self._part = None
        super().wait_reduce()

    def _gather_sum(self) -> None:
        for step in self.completion:
            if step.kind == "all_gather" and self._part is not None:
                with self._noted(step.group):
                    step.group.all_gather(self.bucket.filled(), self._part.clone())

    def drop_gradients(self) -> None:
        """Frees the bucket, too."""
        self.bucket.drop()


class Sharded(FlatWeights):
    """Each rank of `shard_group` updates its shard [elements / ranks]."""

    shard: torch.nn.Parameter
    shard_group: Group

    def __init__(self, number: int, values: Tensors, tied: Tie | None, parts: int, group: Group) -> None:
        super().__init__(number, values, tied, parts)
        self.shard_group = group

    def trained(self) -> Iterable[torch.Tensor]:
        """The shard."""
        return [self.shard]

    def stepped(self) -> dict[str, tuple[Span, torch.Tensor]]:
        """The elements of each weight that lie in the shard."""
        return {name: (span, self.shard.detach()[part]) for name, span, part in self._in_shard()}

    def gradients(self) -> dict[str, torch.Tensor | None]:
        """The gradients of these elements."""
        gradient = self.shard.grad
        return {name: gradient[part] if gradient is not None else None for name, _, part in self._in_shard()}

    def _in_shard(self) -> Iterator[tuple[str, tuple[int, int], slice]]:
        """The weights that lie in this rank's shard: their elements, and the place of these in the shard."""
        size = self.shard.numel()
        first = self.shard_group.index * size
        for slot in self.slots:
            low, high = max(slot.start, first), min(slot.stop, first + size)
            if low < high:
                yield slot.name, (low - slot.start, high - slot.start), slice(low - first, high - first)

    def _my_part(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.chunk(self.shard_group.size)[self.shard_group.index]


class ShardedState(Sharded):
    """Every rank has all of the weights, `flat` [elements], and updates its shard (ZeRO-1 and -2)."""

    def __init__(self, number: int, values: Tensors, tied: Tie | None, parts: int, group: Group) -> None:
        super().__init__(number, values, tied, parts, group)
        self.flat = self.laid(next(iter(values.values())), values.values())
        self.shard = torch.nn.Parameter(self._my_part(self.flat))  # an update of this view changes the weights
        self.parameters = {n: torch.nn.Parameter(v) for n, v in self.views(self.flat).items()}
        self.bucket = Bucket(self)

    def start_reduce(self) -> None:
        """Completes the gradients and adds them to the shard's, after each backward (ZeRO-2) or the last (ZeRO-1)."""
        mine = self.complete(self.bucket.filled())
        self.bucket.drop()
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad.add_(mine)

    def drop_gradients(self) -> None:
        """Frees the bucket, too."""
        super().drop_gradients()
        self.bucket.drop()

    def gather(self) -> None:
        """Fills `flat` from the shards."""
        with self._noted(self.shard_group):
            self.shard_group.all_gather(self.flat, self.shard.detach().clone())


class ShardedWeights(Sharded):
    """Each rank has its shard; weights are gathered for a module, and freed after it (ZeRO-3)."""

    def __init__(self, number: int, values: Tensors, tied: Tie | None, parts: int, group: Group) -> None:
        super().__init__(number, values, tied, parts, group)
        self.shard = torch.nn.Parameter(self._my_part(self.laid(next(iter(values.values())), values.values())).clone())
        self._again: torch.Tensor | None = None

    def weights(self) -> dict[str, torch.Tensor]:
        """All weights, gathered; backward reduces their gradients to the shard's."""
        with self.timed("gather"):
            gathered = self._gathered()
            self.shard_group.world.gathered.note(gathered, self)
            with torch.enable_grad():  # the first reader may need no gradient while a later one does
                views = _Gather.apply(self.shard, self, gathered)  # type: ignore[no-untyped-call]
            return dict(zip((s.name for s in self.slots), views, strict=True))

    def release(self, weights: dict[str, torch.Tensor]) -> None:
        """Frees the gathered weights, and counts the time that takes."""
        with self.timed("drop"):
            weights.clear()

    def gathered_again(self) -> torch.Tensor:
        """The weights [elements] for backward, gathered once until the gradients have been reduced."""
        if self._again is None:
            with self.timed("gather"):
                self._again = self._gathered()
        return self._again

    def drop(self) -> None:
        """Frees what `gathered_again` keeps."""
        self._again = None

    def timed(self, what: str) -> AbstractContextManager[Any]:
        """A context whose time counts for this flat parameter, not for the operator that reads it."""
        clock = self.shard_group.world.clock
        return clock.aside(TimedPlace(what, self.number)) if clock is not None else nullcontext()

    def _gathered(self) -> torch.Tensor:
        """All weights [elements], gathered from their shards."""
        flat = self.shard.new_empty(self.elements)
        with self._noted(self.shard_group):
            self.shard_group.all_gather(flat, self.shard.detach())
        return flat


class _Gather(torch.autograd.Function):
    """The weights of a flat parameter, gathered from its shards; backward reduces their gradients to the shard's.

    [elements / ranks] -> each weight in its shape. `gathered` [elements] is an argument so that it can be freed.
    """

    @staticmethod
    def forward(
        ctx: Any, shard: torch.Tensor, flat: ShardedWeights, gathered: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.flat, ctx.place = flat, TimedPlace("scatter", flat.number)
        return tuple(flat.views(gathered).values())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor, None, None]:
        flat: ShardedWeights = ctx.flat
        with flat.timed("scatter"):
            whole = flat.laid(flat.shard, gradients)
            flat.drop()
            return flat.complete(whole), None, None


def make_flat_param(
    number: int, values: Tensors, zero: str, shard_group: Group | None, tied: Tie | None, parts: int
) -> FlatWeights:
    """The flat parameter of these weights, with the state sharded that `zero` names: none, optimizer, grads or weights.
    `parts` is the number of equal parts into which its completion cuts it."""
    if shard_group is None:
        return Replicated(number, values, tied, parts)
    return (ShardedWeights if zero == "weights" else ShardedState)(number, values, tied, parts, shard_group)
