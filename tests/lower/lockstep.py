"""Devices in lockstep: stands in for torch.distributed and runs the runtime's own code for all ranks in one process.

A rank's program is run until it calls a collective whose result is not known; when every rank has stopped there, the
collective is carried out for all of them, and the programs are run anew, a call further. So no threads are needed,
and ranks that would wait for each other in vain are found. Tensors hold whole numbers, so that sums are exact.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch

from ssdsl.ir.layout import PARTIAL, REPLICATE, Layout, Shape, Shard
from ssdsl.plan.regions import Digit
from ssdsl.runtime.ranks.transport import Ends, PendingWork, StartedExchange, Works
from ssdsl.runtime.ranks.world import World

T = TypeVar("T")
Axes = tuple[tuple[str, int], ...]


class Pause(Exception):
    """A rank waits for the others in a collective."""


class Message:
    """A receive: the piece is taken when it is waited for."""

    def __init__(self, box: deque[torch.Tensor], buffer: torch.Tensor) -> None:
        self.box, self.buffer = box, buffer

    def is_completed(self) -> bool:
        return True

    def wait(self) -> None:
        sent = self.box.popleft()
        assert sent.dtype == self.buffer.dtype and sent.numel() == self.buffer.numel()
        self.buffer.view(-1).copy_(sent.view(-1))


class Lockstep:
    """The transport of whichever rank is running."""

    def __init__(self) -> None:
        self.rank = 0
        self.turn = 0
        self.results: dict[int, list[torch.Tensor]] = {}
        self.posted: dict[int, tuple[str, tuple[int, ...], torch.Tensor]] = {}
        self.mail: dict[tuple[int, int, int], deque[torch.Tensor]] = {}

    def run(self, programs: Mapping[int, Callable[[], T]]) -> dict[int, T]:
        """The result of each rank's program."""
        self.results = {rank: [] for rank in programs}
        while True:
            done, self.posted = {}, {}
            for self.rank, program in programs.items():
                self.turn = 0
                try:
                    done[self.rank] = program()
                except Pause:
                    continue
            if not self.posted:
                return done
            for group in dict.fromkeys(group for _, group, _ in self.posted.values()):
                self._carry_out(group)

    def _carry_out(self, group: tuple[int, ...]) -> None:
        assert all(rank in self.posted for rank in group), f"some of {group} never come"
        calls = [self.posted[rank] for rank in group]
        kind = calls[0][0]
        assert {(k, g, x.numel()) for k, g, x in calls} == {(kind, group, calls[0][2].numel())}
        given = torch.stack([x for _, _, x in calls])
        match kind:
            case "all_reduce":
                results = [given.sum(0)] * len(group)
            case "all_gather":
                results = [given.flatten()] * len(group)
            case "reduce_scatter":
                results = list(given.sum(0).chunk(len(group)))
            case "all_to_all":
                results = list(given.view(len(group), len(group), -1).transpose(0, 1).flatten(1))
        for rank, result in zip(group, results, strict=True):
            self.results[rank].append(result)

    def _call(self, kind: str, group: tuple[int, ...], result: torch.Tensor, given: torch.Tensor) -> PendingWork:
        assert self.rank in group and given.is_contiguous() and result.is_contiguous()
        if self.turn == len(self.results[self.rank]):
            self.posted[self.rank] = kind, group, given.flatten().clone()
            raise Pause
        result.view(-1).copy_(self.results[self.rank][self.turn])
        self.turn += 1
        return Works(())

    def new_group(self, ranks: list[int]) -> tuple[int, ...]:
        return tuple(sorted(ranks))  # as torch does

    def world(self) -> World:
        return World(self, transfers=[(None, None)])

    def start_all_reduce(self, x: torch.Tensor, group: tuple[int, ...], merge: str = "sum") -> PendingWork:
        assert merge == "sum"
        return self._call("all_reduce", group, x, x)

    def start_all_gather(self, parts: torch.Tensor, x: torch.Tensor, group: tuple[int, ...]) -> PendingWork:
        return self._call("all_gather", group, parts, x)

    def start_reduce_scatter(self, mine: torch.Tensor, parts: torch.Tensor, group: tuple[int, ...]) -> PendingWork:
        return self._call("reduce_scatter", group, mine, parts)

    def start_all_to_all(
        self, received: torch.Tensor, parts: torch.Tensor, group: tuple[int, ...], rows: None = None
    ) -> PendingWork:
        return self._call("all_to_all", group, received, parts)

    def receiving(self) -> AbstractContextManager[None]:
        return nullcontext()

    def start_exchange(self, into: Ends, parts: Ends, group: None, tag: int = 0) -> StartedExchange:
        leaving = []
        for peer, piece in parts:
            assert piece.is_contiguous() and peer != self.rank
            box = self.mail.setdefault((self.rank, peer, tag), deque())
            box.append(piece.clone())
            leaving.append(Message(box, piece))
        boxes = [self.mail.setdefault((peer, self.rank, tag), deque()) for peer, _ in into]
        return StartedExchange([Message(box, x) for box, (_, x) in zip(boxes, into, strict=True)], leaving)

    def start_broadcast(self, x: torch.Tensor, source: int, group: tuple[int, ...]) -> PendingWork:
        if source == self.rank:
            return Works(self.start_exchange((), [(rank, x) for rank in group if rank != source], None, -1).leaving)
        return self.start_exchange([(source, x)], (), None, -1).arriving[0]


class Tensors:
    """What layouts mean, written down without the code under test."""

    @staticmethod
    def layouts(axes: Axes, shape: Shape, factors: tuple[int, ...], *, partial: bool = True) -> Iterator[Layout]:
        """All layouts that shard only these factors; axes that share one nest in every order, from the outermost."""
        words = ["R", *(["P"] if partial else []), *factors]
        for chosen in itertools.product(words, repeat=len(axes)):
            sharing = [[a for a, word in enumerate(chosen) if word == f] for f in factors]
            for orders in itertools.product(*map(itertools.permutations, sharing)):
                places = [PARTIAL if word == "P" else REPLICATE for word in chosen]
                sizes = list(shape.factors)
                for factor, order in zip(factors, orders, strict=True):
                    for a in order:
                        count = axes[a][1]
                        places[a] = Shard(factor, Digit(count, sizes[factor] // count))
                        sizes[factor] = sizes[factor] // count if sizes[factor] % count == 0 else 0
                if 0 not in sizes:
                    yield Layout(tuple(places))

    @staticmethod
    def part(whole: torch.Tensor, shape: Shape, digits: list[tuple[Shard, int]]) -> torch.Tensor:
        """The elements at whose positions each digit has the given value."""
        x = whole.reshape(shape.factors)
        for factor, size in enumerate(shape.factors):
            at = torch.arange(size)
            for shard, value in digits:
                if shard.factor == factor:
                    at = at[at // shard.digit.stride % shard.digit.parts == value]
            x = x.index_select(factor, at)
        return x.reshape(shape.local(tuple(d for d, _ in digits)).sizes)

    @staticmethod
    def digits(layout: Layout, at: tuple[int, ...]) -> list[tuple[Shard, int]]:
        """The digits that a device carries, with its values of them."""
        return [(p, c) for p, c in zip(layout.places, at, strict=True) if isinstance(p, Shard)]

    @classmethod
    def spread(
        cls, whole: torch.Tensor, shape: Shape, layout: Layout, axes: Axes, generator: torch.Generator
    ) -> dict[tuple[int, ...], torch.Tensor]:
        """What each device holds, by its coordinates: along partial axes, random parts that add up."""
        left: dict[tuple[int, ...], torch.Tensor] = {}
        held = {}
        for at in itertools.product(*(range(n) for _, n in axes)):
            sums = [a for a, place in enumerate(layout.places) if place is PARTIAL]
            key = tuple(0 if a in sums else c for a, c in enumerate(at))
            rest = left.get(key)
            if rest is None:
                rest = cls.part(whole, shape, cls.digits(layout, at))
            if all(at[a] == axes[a][1] - 1 for a in sums):
                held[at] = rest
            else:
                held[at] = torch.randint(-9, 10, rest.shape, generator=generator).to(whole.dtype)
                left[key] = rest - held[at]
        return held

    @classmethod
    def check(
        cls, held: Mapping[tuple[int, ...], torch.Tensor], whole: torch.Tensor, shape: Shape, layout: Layout
    ) -> bool:
        """Whether what the devices hold is the tensor in this layout, by value and shape."""
        sums: dict[tuple[int, ...], torch.Tensor] = {}
        partial = [a for a, place in enumerate(layout.places) if place is PARTIAL]
        for at, x in held.items():
            key = tuple(0 if a in partial else c for a, c in enumerate(at))
            sums[key] = sums[key] + x if key in sums else x
        return all(torch.equal(x, cls.part(whole, shape, cls.digits(layout, at))) for at, x in sums.items())
