"""The state of one rank: its coordinates, its groups, and everything else that is its own.

No state of a rank is global, so several ranks and several programs can run as threads of one process. Code of a role
that needs state without a parameter for it (its groups, the list of deferred weight gradients) uses the rank that
`enter` has set for this thread. Backward may run in other threads (autograd's, on CUDA); there the rank that forward
has saved is used.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from ..layout.mesh import RankMesh
from .ahead import TravelsAhead
from .control import Control
from .regather import Gathered, MemorySource
from .tracer import Tracer
from .transport import Merge, PendingWork, Rows, Transport, Works


@dataclass(frozen=True)
class Group:
    """The ranks that differ from this one only on some axes. `index` is this rank's position among them."""

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
        """Replaces `x` by its sum, or maximum, over the group. `x` is contiguous, and has one shape on all ranks."""
        self.start_all_reduce(x, merge).wait()

    def start_all_reduce(self, x: torch.Tensor, merge: Merge = "sum") -> PendingWork:
        """Starts to replace `x` by its sum, or maximum; it is that after the work's `wait`."""
        return self._start("all_reduce", (x,), x, self.process_group, merge)

    def all_gather(self, into: torch.Tensor, x: torch.Tensor) -> None:
        """Fills `into` [ranks * n] with the ranks' `x` [n], in the order of `ranks`."""
        self.start_all_gather(into, x).wait()

    def start_all_gather(self, into: torch.Tensor, x: torch.Tensor) -> PendingWork:
        """Starts an `all_gather`; after the work's `wait`, `into` is filled and `x` may change."""
        return self._start("all_gather", (into,), into, x, self.process_group)

    def reduce_scatter(self, into: torch.Tensor, x: torch.Tensor) -> None:
        """Fills `into` [n] with this rank's part of the sum of `x` [ranks * n]."""
        self.start_reduce_scatter(into, x).wait()

    def start_reduce_scatter(self, into: torch.Tensor, x: torch.Tensor) -> PendingWork:
        """Starts a `reduce_scatter`; after the work's `wait`, `into` is filled and `x` may change."""
        return self._start("reduce_scatter", (x,), into, x, self.process_group)

    def all_to_all(self, into: torch.Tensor, x: torch.Tensor, rows: Rows | None = None) -> None:
        """Fills part k of `into` [ranks * n] with this rank's part of rank k's `x` [ranks * n]; parts of unequal size
        have so many `rows`."""
        self.start_all_to_all(into, x, rows).wait()

    def start_all_to_all(self, into: torch.Tensor, x: torch.Tensor, rows: Rows | None = None) -> PendingWork:
        """Starts an `all_to_all`; after the work's `wait`, `into` is filled and `x` may change."""
        return self._start("all_to_all", (x,), into, x, self.process_group, rows)

    def exchange(self, into: dict[int, torch.Tensor], parts: dict[int, torch.Tensor]) -> None:
        """Sends a part to each of some ranks, given by their index in the group, and fills `into` with what they
        send."""
        self.start_exchange(into, parts).wait()

    def start_exchange(self, into: dict[int, torch.Tensor], parts: dict[int, torch.Tensor]) -> PendingWork:
        """Starts an exchange; after the work's `wait`, `into` is filled and `parts` may change."""
        received, sent = ([(self.ranks[k], x) for k, x in tensors.items()] for tensors in (into, parts))
        return self._start("exchange", into.values(), received, sent, self.process_group)

    def _start(self, kind: str, payload: Iterable[torch.Tensor], *args: Any) -> PendingWork:
        """Starts communication by the transport; meanwhile, and while somebody waits for it, the rank's status says
        so."""
        world = self.world
        call = world.begin(kind, self, *payload)
        work: PendingWork = getattr(world.transport, f"start_{kind}")(*args)
        if world.blocking:
            work.wait()
            work = Works(())
        world.call = None
        return Started(work, world, call)


@dataclass(frozen=True, slots=True)
class GroupCall:
    """A call on a group, and its place in the program: `site` is a place in a role's code, or a flat parameter."""

    kind: str
    group: Group
    site: Any


@dataclass(frozen=True, slots=True)
class AwaitedMessage:
    """A message that this rank waits for: `ranks` have to send or receive it. `number` is the message's."""

    verb: str
    number: int
    gradient: bool
    ranks: tuple[int, ...]


@dataclass(eq=False, slots=True)
class Started:
    """A collective in flight. While somebody waits for it, the rank's status says so."""

    work: PendingWork
    world: "World"
    call: GroupCall

    def __post_init__(self) -> None:
        self.world.in_flight[self] = None

    def wait(self) -> None:
        """Blocks until it is done."""
        self.world.call = self.call
        self.work.wait()
        self.world.call = None
        self.world.in_flight.pop(self, None)


@dataclass(eq=False)
class World:
    """A rank. All ranks call `join` alike."""

    transport: Transport
    meshes: dict[str, RankMesh] = field(default_factory=dict)
    groups: dict[tuple[str, tuple[str, ...]], Group] = field(default_factory=dict)
    transfers: list[tuple[Any, Any]] = field(default_factory=list)  # by lane: for values, for gradients
    broadcasts: dict[tuple[int, ...], Group | None] = field(default_factory=dict)  # by ranks; None: without this one
    counts: dict[str, dict[str, int]] = field(default_factory=dict)  # calls and payload bytes by kind of communication
    waiting: list[Any] = field(default_factory=list)  # deferred gradients of weights (step/split_backward.py)
    gathered: Gathered = field(default_factory=Gathered)  # in the current forward
    ahead: TravelsAhead = field(default_factory=TravelsAhead)  # weights and their gradients that are under way
    recomputing: int = 0  # how many recomputed forwards are running inside each other
    layer: str = ""  # the module whose function runs
    site: Any = None  # the program's place of the next collective, if known (step/provenance.py)
    call: GroupCall | AwaitedMessage | None = None  # what this rank waits for now
    last: GroupCall | None = None  # the last collective that it started: a GPU may still run it
    in_flight: dict["Started", None] = field(default_factory=dict)  # started and not awaited, the oldest first
    runs: list[Any] = field(default_factory=list)  # the compiled runs of its programs (kernels/compiled.py)
    mode: str = "default"  # in which torch compiles them
    compiling: str = ""  # which of them torch compiles now
    tracer: Tracer | None = None  # set in a step that is followed: a clock, or a search for NaN
    blocking: bool = False  # whether each collective is awaited where it starts
    _joined: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)  # groups that all ranks have made

    @property
    def rank(self) -> int:
        """This rank's number among all."""
        return self.transport.rank

    @cached_property
    def control(self) -> Control:
        """Small messages between all ranks; all ranks use it first at the same time."""
        return Control(self.transport)

    @contextmanager
    def enter(self) -> Iterator[None]:
        """A context in which this thread acts as the rank."""
        before = _here.set(self)
        try:
            yield
        finally:
            _here.reset(before)

    def join(self, meshes: Iterable[RankMesh], wanted: Iterable[tuple[str, tuple[str, ...]]]) -> None:
        """Creates the wanted groups (mesh and axes) that do not exist yet; all ranks create all, in the same order."""
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
        """Makes a group of these ranks; None for a rank outside. Called by all ranks alike."""
        made = self.transport.new_group(ranks)
        return Group(name, tuple(ranks), ranks.index(self.rank), made, self) if self.rank in ranks else None

    def at(self, mesh: str, fixed: Mapping[str, int], rank: int | None = None) -> dict[str, int] | None:
        """The coordinates of a rank in a mesh (by default of this rank); None unless it is at the `fixed` ones."""
        at = self.meshes[mesh].coordinates(self.rank if rank is None else rank)
        return at if at is not None and fixed.items() <= at.items() else None

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """A context whose communication is not counted: the counters are of training."""
        counts, self.counts = self.counts, {}
        yield
        self.counts = counts

    def begin(self, kind: str, group: Group, *tensors: torch.Tensor) -> GroupCall:
        """Records and counts a collective that the rank enters; `call` is reset to None when it is done."""
        self.call = self.last = call = GroupCall(kind, group, self.site)
        self.count(kind, *tensors)
        return call

    def count(self, kind: str, *tensors: torch.Tensor) -> None:
        """Counts one call with this payload: the whole tensor that an all_reduce sums, an all_gather returns, a
        reduce_scatter takes or an all_to_all exchanges; for an exchange, what this rank receives."""
        entry = self.counts.setdefault(kind, {"calls": 0, "bytes": 0})
        entry["calls"] += 1
        entry["bytes"] += sum(x.numel() * x.element_size() for x in tensors)


_here: ContextVar[World] = ContextVar("the rank of this thread")


def here() -> World:
    """The rank as which this thread runs."""
    return _here.get()


def note_source(x: torch.Tensor, source: MemorySource) -> None:
    """Records the source from which the rank's backward makes a tensor again; nothing outside of a rank."""
    world = _here.get(None)
    if world is not None:
        world.gathered.note(x, source)


def group(mesh: str, *axes: str) -> Group:
    """The group of this rank along one or several axes of a mesh."""
    return here().groups[mesh, axes]
