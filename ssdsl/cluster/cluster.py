"""A cluster: groups of equal nodes, and the links that join devices at each level, innermost first.

Ranks are placed in order: 0..7 on the first node of eight devices, the next eight on the second, group after group.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

from ssdsl.cluster.device import Device, Host, Overlap
from ssdsl.cluster.errors import ClusterTooSmall
from ssdsl.cluster.link import Link
from ssdsl.record import Record, replace
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Span

Ranks = tuple[int, ...]
# NCCL passes a message on in chunks: of 512 KiB (one of eight steps of a buffer of 4 MiB), or, if it is smaller than
# CHUNKS of these, in CHUNKS smaller ones, as its protocols for low latency do
MAX_CHUNK_BYTES = 2**19
CHUNKS = 16


class Level(Record):
    """A level of the cluster: a node, a rack, the whole cluster, a wide area. Units of `size` consecutive devices are
    joined by the link."""

    name: str
    size: int
    link: Link


class NodeGroup(Record):
    """Equal nodes. `levels` go from the node to the whole group; each size divides the next. An hour of one of its
    devices costs `device_hour`, on a cluster with a price."""

    device: Device
    levels: tuple[Level, ...]
    site: str = ""
    host: Host | None = None
    device_hour: float = 0.0

    @property
    def per_node(self) -> int:
        return self.levels[0].size

    @property
    def size(self) -> int:
        return self.levels[-1].size

    @property
    def nodes(self) -> int:
        return self.size // self.per_node


class _Span(Record):
    """A level of the cluster that some ranks span: a ring over them crosses it `hops` times. The level joins units of
    `unit` devices; the unit with the fewest of these ranks has `fewest`."""

    level: Level
    hops: int
    fewest: int
    unit: int

    def link(self, busy: int | None) -> Link:
        """The share of the link that one device gets while `busy` devices of its unit use it; None: all."""
        link = self.level.link
        if busy is None or link.alone_bandwidth is None:
            return link
        return replace(link, bandwidth=min(link.alone_bandwidth, link.bandwidth * self.unit / busy))


class _Unit(NamedTuple):
    """A unit that a level joins with others: its `number` is the level's depth and its first device. The level begins
    at rank `outer`. Messages that leave the unit have the bandwidth `alone` if one device sends, and `shared` if all of
    its devices do, together."""

    number: tuple[int, int]
    outer: int
    latency: float
    alone: float
    shared: float


class Price(Record):
    """The `currency` of what devices cost, and what a gigabyte costs that goes between sites."""

    currency: str
    gb_between_sites: float
    source: str


class StepError(Record):
    """The known error of simulated steps on such devices, as a share of the step, and the source of that figure."""

    step: float
    source: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """Groups of nodes; `levels` join groups, up to the whole; their sizes count devices from rank 0.

    With `shares_cores` the devices are cores of one machine, and ranks are processes on them: any number of ranks runs,
    and more ranks than cores share them. With `routes`, values go to other devices in layouts for which slow links
    carry each element once, and copies of weights share a reduction; else values go as they lie, and each copy reduces
    all. `overlap` says what runs at the same time, `error` how wrong simulated steps are and `price` what devices cost,
    if that is known.

    Clusters compare and hash by value; `link` and `ring` cache the levels that ranks span.
    """

    name: str
    about: str
    groups: tuple[NodeGroup, ...]
    levels: tuple[Level, ...] = ()
    shares_cores: bool = False
    overlap: Overlap = field(default_factory=Overlap)
    error: StepError | None = None
    routes: bool = True
    price: Price | None = None
    _spans: dict[Ranks, tuple[_Span, ...]] = field(default_factory=dict, init=False, compare=False, repr=False)
    _units_of: dict[int, tuple[_Unit, ...]] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def size(self) -> int:
        """The number of devices."""
        return sum(group.size for group in self.groups)

    def second_price(self, devices: int) -> float:
        """What the first so many devices cost in a second; 0 without a price."""
        if self.price is None:
            return 0.0
        total, left = 0.0, devices
        for group in self.groups:
            total, left = total + min(left, group.size) * group.device_hour, max(0, left - group.size)
        return total / 3600

    def sent_price(self, kind: str, level: str, size_bytes: float, ranks: int) -> float:
        """What it costs that each of so many ranks takes part in a message or collective over a level, per rank: what
        goes between sites has a price. A ring over them goes from each site to the next one once."""
        if self.price is None or level not in {outer.name for outer in self.levels}:
            return 0.0
        sites = len({group.site for group in self.groups})
        rounds = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
        between = size_bytes if sites > 1 else 0.0
        if kind in rounds:
            between *= rounds[kind] * (ranks - 1) / ranks * sites / ranks
        elif kind == "all_to_all":
            between *= 1 - 1 / sites
        return between / 1e9 * self.price.gb_between_sites

    def alike(self, rank: int) -> int:
        """The least rank whose links are those of this one: for each n, ranks `alike + n` and `rank + n` have the same
        links."""
        if self.shares_cores:
            return 0
        if len(self.groups) > 1:
            return rank
        return rank % math.lcm(*(level.size for level in self.groups[0].levels if level.size < self.size))

    @property
    def overlaps_collectives(self) -> bool:
        """Whether devices compute while a collective that they have started goes on. Ranks that share cores do not."""
        return self.overlap.gradients and not self.shares_cores

    def sharing(self, world: int) -> float:
        """The number of ranks that share a device when `world` ranks run: its rates and its memory are divided by
        it."""
        return max(1.0, world / self.size) if self.shares_cores else 1.0

    def check_size(self, world: int, span: Span | None = None) -> None:
        """Raises PlanError if the plan has more ranks than the cluster has devices."""
        if world > self.size and not self.shares_cores:
            raise PlanError(ClusterTooSmall(span, world, self.name, self.size))

    def device(self, rank: int) -> Device:
        return self.groups[self._group(rank)].device

    def devices(self, ranks: Ranks) -> tuple[Device, ...]:
        """The distinct devices of these ranks."""
        if len(self.groups) == 1:
            return (self.groups[0].device,)
        return tuple(dict.fromkeys(self.device(rank) for rank in ranks))

    def host(self, rank: int) -> Host | None:
        """The host of a rank's node, if the file says anything of it. That of cores has their memory."""
        group = self.groups[0 if self.shares_cores else self._group(rank)]
        if group.host is None and self.shares_cores:
            bandwidth = group.device.achievable_bandwidth()
            return Host(group.device.memory_bytes * group.size, bandwidth * group.size, bandwidth / 2, 0.0)
        return group.host

    def on_node(self, rank: int, world: int) -> int:
        """How many of `world` ranks are on the node of a rank."""
        if self.shares_cores:
            return world
        number = self._group(rank)
        start, per_node = sum(group.size for group in self.groups[:number]), self.groups[number].per_node
        first = start + (rank - start) // per_node * per_node
        return min(world, first + per_node) - first

    def link(self, ranks: Ranks, busy: Ranks | None = None) -> Link:
        """The slowest link between these ranks: the share of one rank while the `busy` ranks communicate (None: all
        ranks)."""
        links = (s.link(self._count(ranks[0], s, busy)) for s in self._spanned(ranks))
        return min(links, key=lambda link: link.bandwidth)

    def level(self, ranks: Ranks) -> str:
        """The name of the outermost level that these ranks span."""
        return self._spanned(ranks)[-1].level.name

    def ring(self, ranks: Ranks, busy: Ranks | None = None) -> Link:
        """The link of a ring over these ranks, while the `busy` ranks have rings of their own (None: all ranks).

        If k of the ranks are in one unit, k links leave the unit, and NCCL sends a k-th of the data over each: a ring
        over eight ranks on each of two nodes is eight times as fast as over one on each. The latency is the mean over
        the hops, which may be of several levels. Source: NCCL's own model of a ring's time, `src/graph/tuning.cc`.

        In an all_to_all, only what goes to other units crosses these links, and each rank sends it over its own one:
        `pair_bandwidth`.
        """
        spans = self._spanned(ranks)
        found = min((self._around(ranks[0], s, busy) for s in spans), key=lambda link: link.bandwidth)
        latency = sum(s.hops * s.level.link.latency for s in spans) / sum(s.hops for s in spans)
        return replace(found, latency=latency, pair_bandwidth=self._to_others(ranks, spans, busy))

    def _to_others(self, ranks: Ranks, spans: tuple[_Span, ...], busy: Ranks | None) -> float | None:
        """The mean bandwidth at which a rank sends as much to each of the others, one after another: that of a rank
        with the fewest others near it. None for a single rank.

        Of ranks 0 to 15 on two nodes of 8, rank 0 sends to 8 over its link of the cluster, and to 7 over that of its
        node.
        """
        seconds, within = 0.0, len(ranks)  # of the unit that the rank shares with so many of them
        for span in reversed(spans):
            if span.fewest < within:
                link = span.link(self._count(ranks[0], span, busy))
                seconds += (within - span.fewest) / link.bandwidth
                within = span.fewest
        return (len(ranks) - 1) / seconds if seconds else None

    def _around(self, rank: int, span: _Span, busy: Ranks | None) -> Link:
        link = span.link(self._count(rank, span, busy))
        return replace(link, bandwidth=link.bandwidth * span.fewest)

    def _count(self, rank: int, span: _Span, busy: Ranks | None) -> int | None:
        """The number of busy ranks in a rank's unit; None if all are busy, or if it makes no difference."""
        if busy is None or span.level.link.alone_bandwidth is None:
            return None
        start = self._start(rank)
        unit = (rank - start) // span.unit
        return max(1, sum((r - start) // span.unit == unit for r in busy))

    def collective_time(self, kind: str, size_bytes: float, ranks: Ranks, busy: Ranks | None = None) -> float:
        """The seconds of `Link.collective_time` among these ranks."""
        if len(ranks) < 2:
            return 0.0
        return self.ring(ranks, busy).collective_time(kind, size_bytes, len(ranks))

    def exchange(self, paths: Iterable[tuple[Ranks, float]]) -> tuple[float, float]:
        """Two times in seconds, for messages that are sent at once: how long they occupy their links, and how long the
        last byte takes to arrive. Each message has its sender and its receiver, or all ranks that pass it on from one
        to the next, and its bytes.

        Messages share the links of their devices, and the network adapters of their units (nodes, racks) if the level
        gives `alone_bandwidth`, the rate of one device that sends alone. The time is that of the busiest link or
        adapter, in one direction; latencies of messages overlap. A message is passed on in chunks while it arrives, so
        all hops of a path are busy at once; a hop begins after the first chunk of the one before, and the latencies of
        hops add up.
        """
        sends: dict[int, float] = {}  # seconds by device
        gets: dict[int, float] = {}
        leaves: dict[tuple[int, int], float] = {}  # seconds by unit
        enters: dict[tuple[int, int], float] = {}
        latency = 0.0
        for ranks, size in paths:
            arrives = chunk = 0.0
            for source, target in pairwise(ranks):
                if source == target:
                    continue
                own, other = self._joined(source, target)
                arrives += own.latency + chunk / own.alone
                chunk = min(size / CHUNKS, MAX_CHUNK_BYTES)
                alone, shared = size / own.alone, size / own.shared
                sends[source] = sends.get(source, 0.0) + alone
                gets[target] = gets.get(target, 0.0) + alone
                leaves[own.number] = leaves.get(own.number, 0.0) + shared
                enters[other.number] = enters.get(other.number, 0.0) + shared
            latency = max(latency, arrives)
        return max((s for busy in (sends, gets, leaves, enters) for s in busy.values()), default=0.0), latency

    def _joined(self, source: int, target: int) -> tuple[_Unit, _Unit]:
        """The units of two ranks at the innermost level that has both ranks."""
        own, other = self._units(source), self._units(target)
        if (apart := len(own) - len(other)) != 0:  # groups may differ in depth: compare the outer levels
            own, other = own[max(apart, 0) :], other[max(-apart, 0) :]
        for a, b in zip(own, other, strict=True):
            if a.outer == b.outer:
                return a, b
        raise AssertionError(f"no level of {self.name} joins ranks {source} and {target}")

    def _units(self, rank: int) -> tuple[_Unit, ...]:
        """The units of a rank at each level, innermost first."""
        if rank not in self._units_of:
            start, group = self._start(rank), self.groups[self._group(rank)]
            levels = [(level, start) for level in group.levels] + [(level, 0) for level in self.levels]
            if self.shares_cores:
                levels = [(replace(group.levels[0], size=rank + 1), 0)]  # one machine, however many ranks
            found, size, inner = [], 1, rank
            for depth, (level, first) in enumerate(levels):
                link = level.link
                outer = first + (rank - first) // level.size * level.size
                rates = link.message_latency, link.alone_message_bandwidth, link.message_bandwidth * size
                found.append(_Unit((depth, inner), outer, *rates))
                size, inner = level.size, outer
            self._units_of[rank] = tuple(found)
        return self._units_of[rank]

    def node(self, rank: int) -> int:
        """The number of a rank's node, counted over all groups."""
        if self.shares_cores:
            return 0
        number = self._group(rank)
        earlier = sum(group.nodes for group in self.groups[:number])
        return earlier + (rank - self._start(rank)) // self.groups[number].per_node

    def _group(self, rank: int) -> int:
        """The number of a rank's group."""
        if self.shares_cores:
            return 0
        ends = accumulate(group.size for group in self.groups)
        return next(n for n, end in enumerate(ends) if rank < end)

    def _start(self, rank: int) -> int:
        """The first rank of a rank's group."""
        return sum(group.size for group in self.groups[: self._group(rank)])

    def _spanned(self, ranks: Ranks) -> tuple[_Span, ...]:
        """The levels that join some of these ranks, innermost first; for a single rank, its node."""
        if ranks not in self._spans:
            self._spans[ranks] = tuple(self._find_spans(ranks))
        return self._spans[ranks]

    def _find_spans(self, ranks: Ranks) -> list[_Span]:
        if self.shares_cores or len(set(ranks)) < 2:
            return [_Span(self.groups[self._group(ranks[0])].levels[0], 1, 1, 1)]
        assert max(ranks) < self.size, f"{self.name} has no rank {max(ranks)}"
        found: list[_Span] = []
        counts: dict[int, int] = {}  # the number of these ranks in each group, by its first rank
        start = 0
        for group in self.groups:
            inside = {rank - start: 1 for rank in ranks if start <= rank < start + group.size}
            if inside:
                counts[start] = sum(_merge_units(inside, group.levels, found).values())
            start += group.size
        _merge_units(counts, self.levels, found)
        return found


def _merge_units(units: dict[int, int], levels: tuple[Level, ...], found: list[_Span]) -> dict[int, int]:
    """Merges units (numbers of ranks, by the unit's first device) level by level, and notes each level that joins
    some."""
    # Ranks 0, 1 and 8 on nodes of 8: {0: 1, 1: 1, 8: 1} becomes {0: 2, 8: 1} (a hop inside a node), then {0: 3} (a hop
    # between nodes).
    for inner, level in zip((1, *(x.size for x in levels)), levels, strict=False):
        merged: dict[int, int] = {}
        for first, count in units.items():
            unit = first - first % level.size
            merged[unit] = merged.get(unit, 0) + count
        if len(merged) < len(units):
            found.append(_Span(level, len(units) - len(merged), min(units.values()), inner))
        units = merged
        if len(units) == 1:
            break
    return units
