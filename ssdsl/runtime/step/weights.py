"""The weights and buffers of a rank, as the functions of a role read them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from ..ranks.world import World
from .flat_params import FlatWeights, ShardedWeights
from .recompute import is_recomputing


@dataclass
class WeightsView(Mapping[str, torch.Tensor]):
    """The weights under a module path, by the rest of their names; `layer` is the path of this call of the module.

    It is a context: weights gathered for it (ZeRO-3) are freed at its end. Only reading a weight gathers it, not its
    name: `list(w)` in a debugger waits for no other rank.
    """

    weights: "Weights"
    prefix: str
    layer: str
    read: dict[FlatWeights, dict[str, torch.Tensor]] = field(default_factory=dict)
    outer: str = ""  # the calling module

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.named(f"{self.prefix}.{name}" if self.prefix else name)

    def __iter__(self) -> Iterator[str]:
        start = f"{self.prefix}." if self.prefix else ""
        return (name.removeprefix(start) for name in self.weights.names() if name.startswith(start))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return any(name == known for known in self)

    def named(self, name: str) -> torch.Tensor:
        """A weight of any module, by its full name."""
        if name in self.weights.buffers:
            return self.weights.buffers[name].clone() if is_recomputing() else self.weights.buffers[name]
        flat = self.weights.flat_of[name]
        if flat not in self.read:
            self.read[flat] = flat.weights()
        return self.read[flat][name]

    @property
    def next(self) -> "NextValues":
        """The buffers' values for the next step."""
        return NextValues(self.weights, self.prefix)

    def __enter__(self) -> "WeightsView":
        world = self.weights.world
        self.outer, world.layer = world.layer, self.layer
        return self

    def __exit__(self, *exc: object) -> None:
        self.weights.world.layer = self.outer
        for flat, weights in self.read.items():
            flat.release(weights)
        self.read.clear()


@dataclass(frozen=True)
class NextValues:
    """The new values of the buffers under a module path; they become current after the step.

    So all readers in this step read the old value, including recomputation and other micro-batches.
    """

    weights: "Weights"
    prefix: str

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor to write to; recomputation writes to a temporary one."""
        name = f"{self.prefix}.{name}" if self.prefix else name
        known = self.weights.next if not is_recomputing() else {}
        return known.setdefault(name, self.weights.buffers[name].clone())


class Weights:
    """All weights and buffers of this process by name."""

    def __init__(self, flats: list[FlatWeights], buffers: dict[str, torch.Tensor], world: World) -> None:
        self.flats, self.world = flats, world
        self.buffers = buffers
        self.next: dict[str, torch.Tensor] = {}
        self.flat_of = {s.name: f for f in flats for s in f.slots}
        self.gathers = any(isinstance(f, ShardedWeights) for f in flats)
        self._numbered = {f.number: f for f in flats}

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The weights that exist between steps, by name."""
        self.settle()
        return {name: weight for flat in self.flats for name, weight in flat.parameters.items()}

    def settle(self) -> None:
        """Awaits the weights that other ranks have updated: what this rank holds may then be read and written."""
        for flat in self.flats:
            flat.settle()

    def memory(self) -> Iterator[torch.Tensor]:
        """Tensors in all memory that this process has of weights and buffers between steps."""
        for flat in self.flats:
            yield from flat.parameters.values()
        yield from self.buffers.values()

    def names(self) -> Iterator[str]:
        """The names of all weights and buffers of this process."""
        yield from self.flat_of
        yield from self.buffers

    def flat(self, number: int) -> FlatWeights:
        """A flat parameter by its number in the program."""
        return self._numbered[number]

    def take_next(self) -> None:
        """Makes the buffers' new values current."""
        self.buffers.update(self.next)
        self.next.clear()

    def under(self, layer: str = "") -> WeightsView:
        """The weights of a module, by the rest of their names; `trunk#1` is its second call."""
        return WeightsView(self, re.sub(r"#\d+", "", layer), layer)

    def ahead(self, gathers: Sequence[Sequence[int]]) -> AbstractContextManager[None]:
        """A context for a task whose modules gather these flat parameters, in this order: some start ahead (ZeRO-3)."""
        if not gathers:
            return nullcontext()
        groups = ([self._numbered[number] for number in group] for group in gathers)
        return self.world.ahead.of_task([[f for f in group if isinstance(f, ShardedWeights)] for group in groups])

    def saving(self, *, again: bool = False) -> AbstractContextManager[Any]:
        """A context for forward: autograd keeps no gathered weight (ZeRO-3) but gathers it again in backward; with
        `again`, nor a value or a result of a recomputed layer that backward makes again."""
        return self.world.gathered.saving() if self.gathers or again else nullcontext()
