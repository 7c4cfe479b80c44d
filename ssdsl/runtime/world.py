"""One rank: its place among the others, its groups, and all state that is its own.

Nothing of a rank is global, so that several ranks, and several programs, can run as threads of one process. What a
role's file needs without being given it (its groups, where gradients of weights wait) it finds in the rank that `enter`
has made this thread's. Backward may run in other threads (autograd's, on CUDA): there a rank is what forward kept.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from .mesh import Mesh
from .transport import Merge, Transport, Work


@dataclass(frozen=True)
class Group:
    """The ranks that differ from this one only on some axes. `index` is this rank's place among them."""

    name: str
    ranks: tuple[int, ...]
    index: int
    process_group: Any = field(repr=False)
    world: "World" = field(repr=False, compare=False)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    def all_reduce(self, x: torch.Tensor, merge: Merge = "sum") -> None:
        """Replaces `x` by the sum, or maximum, over the group. `x` is contiguous, and of one shape on all ranks."""
        self.world.count("all_reduce", x)
        self.world.transport.all_reduce(x, self.process_group, merge)

    def start_all_reduce(self, x: torch.Tensor) -> Work:
        """Starts to replace `x` by the sum; `x` is the sum after the work's `wait`."""
        self.world.count("all_reduce", x)
        return self.world.transport.start_all_reduce(x, self.process_group)

    def all_gather(self, into: torch.Tensor, x: torch.Tensor) -> None:
        """Fills `into` [ranks * n] with the ranks' `x` [n], in the order of `ranks`."""
        self.world.count("all_gather", into)
        self.world.transport.all_gather(into, x, self.process_group)

    def reduce_scatter(self, into: torch.Tensor, x: torch.Tensor) -> None:
        """Fills `into` [n] with this rank's part of the sum of `x` [ranks * n]."""
        self.world.count("reduce_scatter", x)
        self.world.transport.reduce_scatter(into, x, self.process_group)

    def all_to_all(self, into: torch.Tensor, x: torch.Tensor) -> None:
        """Fills part k of `into` [ranks * n] with the part of rank k's `x` [ranks * n] that is for this rank."""
        self.world.count("all_to_all", x)
        self.world.transport.all_to_all(into, x, self.process_group)


@dataclass(eq=False)
class World:
    """A rank. `join` is called by all ranks alike."""

    transport: Transport
    meshes: dict[str, Mesh] = field(default_factory=dict)
    groups: dict[tuple[str, tuple[str, ...]], Group] = field(default_factory=dict)
    transfers: tuple[Any, Any] = (None, None)  # the groups of all ranks in which values, and gradients, travel
    counts: dict[str, dict[str, int]] = field(default_factory=dict)  # calls and payload bytes by kind of communication
    waiting: list[Any] = field(default_factory=list)  # gradients of weights, to be computed (halves.py)
    recomputing: int = 0  # how many forwards that run again this is inside of
    _joined: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)  # what ranks have been asked to join

    @property
    def rank(self) -> int:
        """This rank's number among all."""
        return self.transport.rank

    @contextmanager
    def enter(self) -> Iterator[None]:
        """A context in which this thread is the rank."""
        before = _here.set(self)
        try:
            yield
        finally:
            _here.reset(before)

    def join(self, meshes: list[Mesh], wanted: list[tuple[str, tuple[str, ...]]]) -> None:
        """Creates the wanted groups (mesh and axes) that are not there; all ranks create all, in the same order."""
        self.meshes |= {m.name: m for m in meshes}
        for mesh, axes in wanted:
            if (mesh, axes) in self._joined:
                continue
            self._joined.add((mesh, axes))
            for ranks in self.meshes[mesh].lines(axes):
                made = self.new_group("_".join(axes), ranks)
                if made is not None:
                    self.groups[mesh, axes] = made

    def new_group(self, name: str, ranks: list[int]) -> Group | None:
        """A group of these ranks, None for a rank outside; called by all ranks alike."""
        made = self.transport.new_group(ranks)
        return Group(name, tuple(ranks), ranks.index(self.rank), made, self) if self.rank in ranks else None

    def coordinate(self, mesh: str, axis: str) -> int:
        """This rank's coordinate on an axis of a mesh that it is in."""
        at = self.meshes[mesh].coordinates(self.rank)
        assert at is not None
        return at[axis]

    def count(self, kind: str, tensor: torch.Tensor) -> None:
        """Adds one call with this payload to the books: the whole tensor that an all_reduce sums, that an all_gather
        returns, that a reduce_scatter is given, that an all_to_all exchanges."""
        entry = self.counts.setdefault(kind, {"calls": 0, "bytes": 0})
        entry["calls"] += 1
        entry["bytes"] += tensor.numel() * tensor.element_size()


_here: ContextVar[World] = ContextVar("the rank of this thread")


def here() -> World:
    """The rank that this thread is."""
    return _here.get()


def group(mesh: str, *axes: str) -> Group:
    """The group of this rank along one axis of a mesh, or several."""
    return here().groups[mesh, axes]
