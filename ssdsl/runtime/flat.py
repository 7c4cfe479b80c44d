"""Flat parameters: weights whose gradients are reduced, and whose state is sharded, together.

A flat parameter lays its weights end to end: a tensor [elements], padded to a multiple of the shards. Where its state
is sharded over a group (ZeRO; Rajbhandari et al. 2020) each rank owns an equal part [elements / ranks]: of the
optimizer's state (ZeRO-1), of the gradients too (ZeRO-2), or of the weights too (ZeRO-3), which are then gathered where
a module uses them and dropped behind it.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from .clock import Place
from .recompute import is_recomputing
from .world import Group, World


@dataclass
class Slot:
    """A weight in its flat parameter: the elements from `start`."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """Its number of elements."""
        return torch.Size(self.shape).numel()


@dataclass(frozen=True)
class Tie:
    """The ranks that sum the gradients of a weight that lives on several submeshes (tied embeddings of two stages).

    Of the ranks of one submesh that hold equal gradients, one `contributes`; the others add zeros.
    """

    group: Group
    contributes: bool


@dataclass(frozen=True)
class Completion:
    """A step from the gradient that backward leaves to the one that the optimizer needs.

    Of a flat gradient [n]: `all_reduce` gives the sum over the group, [n]; `reduce_scatter` this rank's part of the
    sum, [n / ranks]; `chunk` this rank's part of what is equal on all ranks, [n / ranks].
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
            case _:
                return flat.chunk(self.group.size)[self.group.index].clone()


class FlatParam:
    """A flat parameter; `zero` says which state is sharded over `shard_group`.

    | zero | held between steps | optimizer steps on |
    |---|---|---|
    | none | `parameters`, each in its own memory | `parameters` |
    | optimizer, grads | `flat` [elements]; `parameters` and `shard` are views of it | `shard` [elements / ranks] |
    | weights | `shard` [elements / ranks] | `shard` |
    """

    def __init__(
        self,
        number: int,
        values: dict[str, torch.Tensor],
        zero: str,
        shard_group: Group | None,
        tied: Tie | None,
    ) -> None:
        self.number, self.zero, self.shard_group, self.tied = number, zero, shard_group, tied
        self.completion: list[Completion] = []  # as the program that runs leaves the gradients
        self.slots: list[Slot] = []
        start = 0
        for name, value in values.items():
            self.slots.append(Slot(name, tuple(value.shape), start))
            start += value.numel()
        self.used = start
        shards = shard_group.size if shard_group is not None else 1
        self.elements = -(-start // shards) * shards  # what ranks hold along other axes may be of other sizes
        self.parameters: dict[str, torch.nn.Parameter] = {}
        self.shard: torch.nn.Parameter | None = None
        self.flat: torch.Tensor | None = None
        self._pending: Any = None
        self._sum: torch.Tensor | None = None
        self._again: torch.Tensor | None = None
        self._lay(values)

    def _lay(self, values: dict[str, torch.Tensor]) -> None:
        if self.zero == "none":
            self.parameters = {n: torch.nn.Parameter(v.clone()) for n, v in values.items()}
            return
        assert self.shard_group is not None
        example = next(iter(values.values()))
        flat = example.new_zeros(self.elements)
        for slot, value in zip(self.slots, values.values(), strict=True):
            flat[slot.start : slot.start + slot.size] = value.reshape(-1)
        mine = flat.chunk(self.shard_group.size)[self.shard_group.index]
        if self.zero == "weights":
            self.shard = torch.nn.Parameter(mine.clone())
            return
        self.flat = flat
        self.shard = torch.nn.Parameter(mine)  # shares the memory: a step of the optimizer changes the weights
        self.parameters = {n: torch.nn.Parameter(v) for n, v in self.views(flat).items()}

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """The weights in a flat tensor [elements], each in its own shape."""
        return {s.name: flat[s.start : s.start + s.size].view(s.shape) for s in self.slots}

    def trained(self) -> Iterable[torch.nn.Parameter]:
        """What the optimizer steps on."""
        return [self.shard] if self.shard is not None else self.parameters.values()

    def stepped(self) -> dict[str, tuple[tuple[int, int] | None, torch.Tensor]]:
        """What of each weight is stepped on here: all of it, in its shape, or elements [start, stop) of it, flattened.

        The tensors share the memory of what is trained. A weight of which a shard has nothing is left out.
        """
        if self.shard is None:
            return {name: (None, parameter.detach()) for name, parameter in self.parameters.items()}
        shard = self.shard.detach()
        return {
            slot.name: ((low - slot.start, high - slot.start), shard[low - first : high - first])
            for slot, low, high, first in self._in_shard()
        }

    def gradients(self) -> dict[str, torch.Tensor | None]:
        """The completed gradient of each weight, as `stepped` has the weight."""
        if self.shard is None:
            return {name: parameter.grad for name, parameter in self.parameters.items()}
        gradient = self.shard.grad
        return {
            slot.name: gradient[low - first : high - first] if gradient is not None else None
            for slot, low, high, first in self._in_shard()
        }

    def _in_shard(self) -> Iterator[tuple[Slot, int, int, int]]:
        """The weights that lie in this rank's shard: from where to where, and where the shard begins."""
        assert self.shard is not None and self.shard_group is not None
        size = self.shard.numel()
        first = self.shard_group.index * size
        for slot in self.slots:
            low, high = max(slot.start, first), min(slot.start + slot.size, first + size)
            if low < high:
                yield slot, low, high, first

    # -- gradients ---------------------------------------------------------------------------------------------------

    def drop_gradients(self) -> None:
        """Lets go of the gradients: behind a step, and in front of one, where a step was given up."""
        for parameter in self.parameters.values():
            parameter.grad = None
        if self.shard is not None:
            self.shard.grad = None

    def start_reduce(self) -> None:
        """Starts to complete the gradients; other work may go on until `wait_reduce`. ZeRO-2 adds to its shard."""
        if self.shard is not None:
            mine = self.complete(self._gradients())
            self.shard.grad = mine if self.shard.grad is None else self.shard.grad.add_(mine)
        elif self.completion:
            self._sum = self._gradients()
            (step,) = self.completion
            with self._noted(step.group):
                self._pending = step.group.start_all_reduce(self._sum)

    def wait_reduce(self) -> None:
        """Waits for the reduction and puts the completed gradients where the optimizer looks for them."""
        if self._pending is not None:
            assert self._sum is not None
            self._pending.wait()
            for name, gradient in self.views(self._sum).items():
                self.parameters[name].grad = gradient
            self._pending = self._sum = None
        if self.tied is not None:
            for parameter in self.trained():
                if parameter.grad is None or not self.tied.contributes:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad = parameter.grad.contiguous()
                with self._noted(self.tied.group):
                    self.tied.group.all_reduce(parameter.grad)

    def _gradients(self) -> torch.Tensor:
        """The gradients end to end, taken from the parameters."""
        example = next(iter(self.parameters.values()))
        flat = example.new_zeros(self.elements) if self.elements > self.used else example.new_empty(self.elements)
        pieces = self.views(flat)
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                pieces[name].zero_()
            else:
                pieces[name].copy_(parameter.grad)
            parameter.grad = None
        return flat

    def complete(self, flat: torch.Tensor) -> torch.Tensor:
        """This rank's part [elements / ranks] of the completed gradient [elements]."""
        for step in self.completion:
            with self._noted(step.group):
                flat = step(flat)
        return flat

    @contextmanager
    def _noted(self, group: Group) -> Iterator[None]:
        """Within it the rank says that its collectives are of this flat parameter."""
        world = group.world
        before, world.site = world.site, self.number
        yield
        world.site = before

    def timed(self, what: str) -> AbstractContextManager[Any]:
        """Within it the time is this flat parameter's, not that of the operator that reads it."""
        clock = self.shard_group.world.clock if self.shard_group is not None else None
        return clock.aside(Place(what, self.number)) if clock is not None else nullcontext()

    # -- weights -----------------------------------------------------------------------------------------------------

    def gather(self) -> None:
        """Brings the weights that other ranks stepped on (ZeRO-1 and -2)."""
        assert self.flat is not None and self.shard is not None and self.shard_group is not None
        with self._noted(self.shard_group):
            self.shard_group.all_gather(self.flat, self.shard.detach().clone())

    def gathered(self) -> torch.Tensor:
        """All weights [elements], gathered from their shards."""
        assert self.shard is not None and self.shard_group is not None
        flat = self.shard.new_empty(self.elements)
        with self._noted(self.shard_group):
            self.shard_group.all_gather(flat, self.shard.detach())
        return flat

    def gathered_again(self) -> torch.Tensor:
        """The weights for backward, gathered once until the gradients have been given away."""
        if self._again is None:
            with self.timed("gather"):
                self._again = self.gathered()
        return self._again

    def drop(self) -> None:
        """Frees what `gathered_again` has kept."""
        self._again = None


class _Gather(torch.autograd.Function):
    """The weights of a flat parameter, gathered from its shards; backward completes their gradients to the shard's.

    [elements / ranks] -> each weight in its shape. `gathered` [elements] is passed in, so that it can be dropped.
    """

    @staticmethod
    def forward(ctx: Any, shard: torch.Tensor, flat: FlatParam, gathered: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.flat, ctx.place = flat, Place("scatter", flat.number)
        return tuple(flat.views(gathered).values())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor, None, None]:
        flat: FlatParam = ctx.flat
        with flat.timed("scatter"):
            example = next(g for g in gradients if g is not None)
            whole = example.new_zeros(flat.elements)
            for slot, gradient in zip(flat.slots, gradients, strict=True):
                if gradient is not None:
                    whole[slot.start : slot.start + slot.size] = gradient.reshape(-1)
            flat.drop()
            return flat.complete(whole), None, None


@dataclass
class View:
    """The weights under a module path, by the rest of their names; `layer` is the path of this call of the module.

    It is a context: gathered weights (ZeRO-3) are dropped at its end.
    """

    weights: "Weights"
    prefix: str
    layer: str
    gathered: dict[str, torch.Tensor] = field(default_factory=dict)
    outer: str = ""  # the module that calls this one

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.named(f"{self.prefix}.{name}" if self.prefix else name)

    def named(self, name: str) -> torch.Tensor:
        """A weight of any module, by its full name."""
        if name in self.weights.buffers:
            return self.weights.buffers[name].clone() if is_recomputing() else self.weights.buffers[name]
        flat = self.weights.flat_of[name]
        if flat.zero != "weights":
            return self.weights.tensors[name]
        if name not in self.gathered:
            assert flat.shard is not None
            with flat.timed("gather"):
                gathered = flat.gathered()
                self.weights.world.gathered.note(gathered, flat)
                with torch.enable_grad():  # the first reader may be one without gradient, and a later one learn
                    views = _Gather.apply(flat.shard, flat, gathered)  # type: ignore[no-untyped-call]
                self.gathered.update(zip((s.name for s in flat.slots), views, strict=True))
        return self.gathered[name]

    @property
    def next(self) -> "NextValues":
        """The buffers as they will be after the step."""
        return NextValues(self.weights, self.prefix)

    def __enter__(self) -> "View":
        world = self.weights.world
        self.outer, world.layer = world.layer, self.layer
        return self

    def __exit__(self, *exc: object) -> None:
        self.weights.world.layer = self.outer
        while self.gathered:  # to give memory back takes time, too
            flat = self.weights.flat_of[next(iter(self.gathered))]
            with flat.timed("drop"):
                for slot in flat.slots:
                    del self.gathered[slot.name]


@dataclass(frozen=True)
class NextValues:
    """The new values of the buffers under a module path: they count from the next step on.

    So whatever still reads a buffer in this step reads the old value, recomputation and other micro-batches included.
    """

    weights: "Weights"
    prefix: str

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor to write to; recomputation writes to one that nobody reads."""
        name = f"{self.prefix}.{name}" if self.prefix else name
        known = self.weights.next if not is_recomputing() else {}
        return known.setdefault(name, self.weights.buffers[name].clone())


class Weights:
    """All weights and buffers of this process by name."""

    def __init__(self, flats: list[FlatParam], buffers: dict[str, torch.Tensor], world: World) -> None:
        self.flats, self.world = flats, world
        self.buffers = buffers
        self.next: dict[str, torch.Tensor] = {}
        self.flat_of = {s.name: f for f in flats for s in f.slots}
        self.tensors = {n: p for f in flats for n, p in f.parameters.items()}
        self.gathers = any(f.zero == "weights" for f in flats)
        self._numbered = {f.number: f for f in flats}

    def flat(self, number: int) -> FlatParam:
        """A flat parameter by its number in the program."""
        return self._numbered[number]

    def take_next(self) -> None:
        """The buffers take the values that this step has computed."""
        self.buffers.update(self.next)
        self.next.clear()

    def under(self, layer: str = "") -> View:
        """The weights of a module, by the rest of their names; `trunk#1` is its second call."""
        return View(self, re.sub(r"#\d+", "", layer), layer)

    def saving(self, *, again: bool = False) -> AbstractContextManager[Any]:
        """A context for forward in which autograd keeps no gathered weight but gathers it again (ZeRO-3), and if it is
        done `again`, no gathered value."""
        return self.world.gathered.saving() if self.gathers or again else nullcontext()
