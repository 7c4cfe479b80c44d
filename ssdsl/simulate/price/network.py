"""The time of communication: alpha-beta on the links that groups of ranks span."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from ssdsl.cluster.cluster import Cluster
from ssdsl.ir.comm import Message, Move, Signal, Transfer
from ssdsl.ir.layout import Submesh
from ssdsl.model.graph import ITEMSIZE
from ssdsl.simulate.price.collectives import SizedCollective
from ssdsl.simulate.price.costs import FREE, CommCost, Cost

Ranks = tuple[int, ...]


@dataclass(slots=True)
class Network:
    """The times of communication on a cluster."""

    cluster: Cluster
    _groups: dict[tuple[Submesh, tuple[str, ...]], list[Ranks]] = field(default_factory=dict)
    _busy: dict[Submesh, Ranks] = field(default_factory=dict)
    _collectives: dict[tuple[Submesh, SizedCollective], Cost] = field(default_factory=dict)

    def collective(self, found: SizedCollective, submesh: Submesh) -> Cost:
        """The cost of a collective: that of the slowest of the groups along its axes."""
        key = submesh, found
        if key not in self._collectives:
            self._collectives[key] = max(
                (self.among(found, g, self._ranks(submesh)) for g in self._along(submesh, found.axes)), key=_time
            )
        return self._collectives[key]

    def among(self, found: SizedCollective, ranks: Ranks, busy: Ranks | None = None) -> Cost:
        """The cost of a collective of these ranks, while all `busy` ranks run theirs at the same time."""
        if len(ranks) < 2:
            return FREE
        # an all_to_all's bytes are those of a device's part, and `collective_time` asks for the whole tensor
        whole = found.size_bytes * (len(ranks) if found.kind == "all_to_all" else 1)
        time = self.cluster.collective_time(found.kind, whole, ranks, busy)
        sent = CommCost(found.kind, self.cluster.level(ranks), 1, found.size_bytes, len(ranks))
        return Cost(0.0, time, (sent,))

    def message(self, message: Message, gradient: bool) -> Cost:
        """The cost of a message for the device that takes longest to receive its pieces, one after another."""
        move = message.backward if gradient and isinstance(message, Transfer) else message.forward
        assert move is not None
        source_mesh, target_mesh = message.ends(gradient)
        itemsize = 4 if isinstance(message, Signal) else ITEMSIZE.get(message.dtype, 4)
        busy = self._ranks(source_mesh)
        received: dict[int, float] = {}
        sizes: dict[int, int] = {}
        levels: dict[int, str] = {}
        for source, target, elements in _pairs(move, source_mesh, target_mesh):
            time = self.cluster.point_to_point_time(elements * itemsize, source, target, busy)
            received[target] = received.get(target, 0.0) + time
            if source != target:
                sizes[target] = sizes.get(target, 0) + elements * itemsize
                levels[target] = self.cluster.level((source, target))
        slowest = max(received, key=lambda r: received[r])
        size = sizes.get(slowest, 0)
        sent = CommCost("send", levels.get(slowest, ""), 1, size, target_mesh.size)
        return Cost(0.0, received[slowest], (sent,) if size else ())

    def _ranks(self, submesh: Submesh) -> Ranks:
        if submesh not in self._busy:
            self._busy[submesh] = tuple(submesh.ranks())
        return self._busy[submesh]

    def _along(self, submesh: Submesh, axes: tuple[str, ...]) -> list[Ranks]:
        """The groups of ranks that differ in these axes only."""
        if (submesh, axes) not in self._groups:
            self._groups[submesh, axes] = submesh.groups(axes)
        return self._groups[submesh, axes]


def _time(cost: Cost) -> float:
    return cost.time_s


def _pairs(move: Move, source: Submesh, target: Submesh) -> Iterator[tuple[int, int, int]]:
    """Yields the source rank, target rank and elements of each piece, only for the first and the last of the aligned
    coordinates: others have the same pieces."""
    sizes = dict(source.axes)
    corners = [(0,) * len(move.aligned), tuple(sizes[a] - 1 for a in move.aligned)]
    for corner in dict.fromkeys(corners):
        held = dict(zip(move.aligned, corner, strict=True))
        for piece in move.pieces:
            elements = math.prod(length for _, length in piece.target_box)
            yield source.rank(held, piece.source), target.rank(held, piece.target), elements
