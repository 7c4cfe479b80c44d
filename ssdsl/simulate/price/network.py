"""The time of communication: alpha-beta on the links that groups of ranks span."""

from collections import Counter
from functools import cache
from itertools import pairwise

from ssdsl.analyse.collectives import SizedCollective
from ssdsl.cluster.cluster import Cluster
from ssdsl.ir.comm import Exchange, Message, Move, Transfer
from ssdsl.ir.layout import Submesh
from ssdsl.ir.place import Place, place_of
from ssdsl.model.graph import ITEMSIZE
from ssdsl.simulate.price.costs import FREE, CommCost, Cost, total

Ranks = tuple[int, ...]


class Network:
    """The times of communication on a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._groups, self._ranks = cache(Submesh.groups), cache(Submesh.ranks)
        self._collectives: dict[tuple[Place, SizedCollective], Cost] = {}
        self._messages: dict[tuple[Place, Move, str], Cost] = {}

    def collective(self, found: SizedCollective, submesh: Submesh) -> Cost:
        """The cost of a collective: that of the slowest of the groups along its axes."""
        key = place_of(self.cluster, submesh), found
        if key not in self._collectives:
            groups, busy = self._groups(submesh, found.axes), tuple(self._ranks(submesh))
            if found.exchange is not None:
                self._collectives[key] = self._exchanged(found, found.exchange, groups)
            else:
                self._collectives[key] = max((self.among(found, g, busy) for g in groups), key=lambda c: c.time_s)
            if found.from_host and (host := self.cluster.host(submesh.first)) is not None:
                copied = Cost(0.0, host.latency + found.from_host / host.link_bandwidth)
                self._collectives[key] = total((copied, self._collectives[key]))
        return self._collectives[key]

    def among(self, found: SizedCollective, ranks: Ranks, busy: Ranks | None = None) -> Cost:
        """The cost of a collective of these ranks, while all `busy` ranks run theirs at the same time."""
        if len(ranks) < 2:
            return FREE
        # an all_to_all's bytes are those of a device's part, and `collective_time` asks for the whole tensor
        whole = found.size_bytes * (len(ranks) if found.kind == "all_to_all" else 1)
        time = self.cluster.collective_time(found.kind, whole, ranks, busy)
        sent = CommCost(found.kind, self.cluster.level(ranks), 1, found.size_bytes, len(ranks), time)
        return Cost(0.0, time, (sent,))

    def _exchanged(self, found: SizedCollective, exchange: Exchange, groups: list[Ranks]) -> Cost:
        """The cost of an exchange, in which a device sends only to some others, each over the links between the two:
        all groups send at once."""
        itemsize, sends = found.size_bytes / exchange.elements, [*exchange.sends()]
        time = sum(self.cluster.exchange(((g[a], g[b]), n * itemsize) for g in groups for a, b, n in sends))
        level = self.cluster.level(min(groups, key=lambda g: self.cluster.link(g).bandwidth))
        return Cost(0.0, time, (CommCost(found.kind, level, 1, found.size_bytes, len(groups[0]), time),))

    def message(self, message: Message, gradient: bool) -> Cost:
        """The cost of a message, whose pieces all leave at once."""
        move = message.backward if gradient and isinstance(message, Transfer) else message.forward
        assert move is not None
        source, target = message.ends(gradient)
        key = place_of(self.cluster, source, target), move, message.dtype
        if key not in self._messages:
            self._messages[key] = self._moved(move, source, target, ITEMSIZE.get(message.dtype, 4))
        return self._messages[key]

    def _moved(self, move: Move, source_mesh: Submesh, target_mesh: Submesh, itemsize: int) -> Cost:
        paths = [(ranks, n * itemsize) for ranks, n in move.paths(source_mesh, target_mesh)]
        received: dict[tuple[int, str, str], int] = {}  # bytes by device, kind and level
        for ranks, size in paths:
            for source, target in pairwise(ranks):
                if source != target:
                    key = target, "send" if len(ranks) == 2 else "broadcast", self.cluster.level((source, target))
                    received[key] = received.get(key, 0) + size
        if not received:
            return FREE
        if move.broadcast:  # the hops to a host, and those inside, have levels of their own
            ways = Counter((kind, level) for _, kind, level in received)
            found = [(*way, max(n for key, n in received.items() if key[1:] == way), ways[way]) for way in ways]
        else:
            (_, kind, level), most = max(received.items(), key=lambda item: item[1])
            found = [(kind, level, most, target_mesh.size)]
        sent = tuple(CommCost(kind, level, 1, most, devices) for kind, level, most, devices in found if most)
        occupied_s, latency_s = self.cluster.exchange(paths)
        return Cost(0.0, occupied_s, sent, latency_s)
