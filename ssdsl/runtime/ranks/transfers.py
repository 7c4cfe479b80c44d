"""Transfers of values: sends, receives and broadcasts are posted without waiting, and awaited where the value is read.

A tensor is sent as boxes of its factors: an axis of 12 = 3 · 4 is viewed as [3, 4], and the box ((0, 3), (2, 2)) is the
last half of each of its 3 rows, 6 elements.
"""

import itertools
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from .transport import PendingWork, SendingWork, StartedExchange
from .world import AwaitedMessage, Group, World

At = tuple[int, ...]
Key = tuple[int, At, bool]  # message number, part number, whether it is the gradient
Box = tuple[tuple[int, int], ...]  # (start, length) per factor


@dataclass(frozen=True)
class Broadcast:
    """The rank `source` sends a box to all others of a group. Ranks start a message's broadcasts in the order of their
    `number`s."""

    number: int
    source: int
    group: Group


Peer = int | Broadcast
Boxes = list[tuple[Peer, torch.Tensor]]


@dataclass(frozen=True)
class Leg:
    """This rank's end of one direction of a message: boxes to send to ranks, boxes to receive from ranks (from itself:
    a copy), and boxes that are broadcast.

    `sends_shape` and `gets_shape` are the local tensor's factors, axis by axis; a str is a size that depends on an
    index.
    """

    sends: tuple[tuple[Peer, Box], ...]
    gets: tuple[tuple[Peer, Box], ...]
    sends_shape: tuple[tuple[Any, ...], ...]
    gets_shape: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class ValueTransfer:
    """A value sent from the block that computes it to one that reads it. `uneven`: factors whose size depends on a time
    index."""

    source_slot: str
    target_slot: str
    forward: Leg
    backward: Leg | None
    dtype: torch.dtype
    time: tuple[str, ...] = ()
    uneven: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    lane: int = 0


@dataclass(frozen=True)
class SentSignal:
    """A signal to other ranks that an earlier task is done."""

    forward: Leg
    dtype: torch.dtype = torch.uint8
    time: tuple[str, ...] = ()
    uneven: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    lane: int = 0


Message = ValueTransfer | SentSignal


@dataclass
class Waiting:
    """Posted receives of one message, and boxes that this rank copies from itself.

    `shape` are the factors of the whole local tensor; each buffer has its box's lengths as shape. `peers` are the
    senders of the `works`.
    """

    works: Sequence[PendingWork]
    peers: list[Peer]
    buffers: list[tuple[Box, torch.Tensor]]
    shape: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    own: list[tuple[Box, torch.Tensor]]


class Mover:
    """Posts sends and receives in the order of the step.

    Values and gradients of each lane have a process group, in which they travel one after another. All ranks follow one
    global order, so they do not wait for each other in a cycle, even if a post blocks until the message has arrived.
    """

    def __init__(self, device: torch.device, world: World) -> None:
        self.device = device
        self.world = world
        self.waited_s = 0.0
        self.sending: list[tuple[SendingWork, torch.Tensor, AwaitedMessage]] = []
        self.waiting: dict[Key, Waiting] = {}

    def start(
        self, message: Message, leg: Leg, value: torch.Tensor | None, number: int, at: At, *, gradient: bool = False
    ) -> None:
        """Sends this rank's boxes of a value, and posts the receives of its message."""
        self.sending = [sent for sent in self.sending if not sent[0].is_completed()]
        own: list[torch.Tensor] = []
        parts: Boxes = []
        for peer, box in leg.sends:
            assert value is not None
            piece = _boxed(value, shape_of(leg.sends_shape, at, message), _box(box, at, message)).contiguous()
            if peer == self.world.rank:
                own.append(piece)
            else:
                parts.append((peer, piece))
        with nullcontext() if leg.sends else self.world.transport.receiving():
            waiting = self._buffers(message, leg, own, at)
            into = [(peer, buffer) for peer, (_, buffer) in zip(waiting.peers, waiting.buffers, strict=True)]
            started = self._start(into, parts, self.world.transfers[message.lane][gradient], number * 2 + gradient)
        for work, (peer, piece) in zip(started.leaving, parts, strict=True):
            self.sending.append((work, piece, _awaited("send", number, gradient, peer)))
        if leg.gets:
            waiting.works = started.arriving
            self.waiting[number, at, gradient] = waiting

    def _start(self, into: Boxes, parts: Boxes, group: Any, tag: int) -> StartedExchange:
        """Starts what goes between two ranks, and then each broadcast."""
        arriving, leaving = ([(p, x) for p, x in boxes if isinstance(p, int)] for boxes in (into, parts))
        for _, piece in leaving:
            self.world.count("send", piece)
        exchange = self.world.transport.start_exchange(arriving, leaving, group, tag)
        broadcasts = [(p, x) for p, x in (*into, *parts) if isinstance(p, Broadcast)]
        works: dict[Peer, Any] = {}
        for peer, x in sorted(broadcasts, key=lambda box: box[0].number):
            if peer.source != self.world.rank:
                self.world.count("broadcast", x)
            works[peer] = self.world.transport.start_broadcast(x, peer.source, peer.group.process_group)
        arrives, leaves = iter(exchange.arriving), iter(exchange.leaving)
        return StartedExchange(
            [works[p] if p in works else next(arrives) for p, _ in into],
            [works[p] if p in works else next(leaves) for p, _ in parts],
        )

    def _buffers(self, message: Message, leg: Leg, own: list[torch.Tensor], at: At) -> Waiting:
        peers, buffers, kept = [], [], []
        for peer, box in leg.gets:
            box = _box(box, at, message)
            if peer == self.world.rank:
                kept.append((box, own.pop(0)))
                continue
            peers.append(peer)
            buffers.append((box, torch.empty([length for _, length in box], dtype=message.dtype, device=self.device)))
        return Waiting((), peers, buffers, shape_of(leg.gets_shape, at, message), message.dtype, kept)

    def zeros(self, message: Message, leg: Leg, at: At) -> torch.Tensor:
        """The zeros that a leg sends if there is no gradient."""
        sizes = [math.prod(axis) for axis in shape_of(leg.sends_shape, at, message)]
        return torch.zeros(sizes, dtype=message.dtype, device=self.device)

    def wait(self, number: int, at: At, *, gradient: bool = False) -> torch.Tensor | None:
        """Waits for the posted receives of a message; None if this rank receives nothing of it."""
        waiting = self.waiting.pop((number, at, gradient), None)
        if waiting is None:
            return None
        start = time.perf_counter()
        for work, peer in zip(waiting.works, waiting.peers, strict=True):
            self.world.call = _awaited("receive", number, gradient, peer)
            work.wait()
        for _, buffer in waiting.buffers if self.device.type == "cuda" else ():
            buffer.record_stream(torch.cuda.current_stream(self.device))  # it may have been made in another one
        self.world.call = None
        self.waited_s += time.perf_counter() - start
        return _assembled(waiting, self.device)

    def expected(self) -> list[AwaitedMessage]:
        """The receives that are posted, and that nobody has waited for yet."""
        waiting = ((key, peer) for key, found in self.waiting.items() for peer in found.peers)
        return [_awaited("receive", number, gradient, peer) for (number, _, gradient), peer in waiting]

    def take_waited(self) -> float:
        """Seconds spent waiting since the last call."""
        waited, self.waited_s = self.waited_s, 0.0
        return waited

    def finish(self) -> None:
        """Waits until all sends are complete."""
        for work, _, exchange in self.sending:
            self.world.call = exchange
            work.wait()
        self.world.call = None
        self.sending.clear()


def _awaited(verb: str, number: int, gradient: bool, peer: Peer) -> AwaitedMessage:
    if isinstance(peer, Broadcast):
        return AwaitedMessage("broadcast", number, gradient, peer.group.ranks)
    return AwaitedMessage(verb, number, gradient, (peer,))


def _assembled(waiting: Waiting, device: torch.device) -> torch.Tensor:
    pieces = waiting.buffers + waiting.own
    sizes = [math.prod(axis) for axis in waiting.shape]
    if len(pieces) == 1:
        return pieces[0][1].view(sizes)
    factors = [n for axis in waiting.shape for n in axis]
    whole = torch.empty(factors, dtype=waiting.dtype, device=device)
    for box, piece in pieces:
        whole[tuple(slice(s, s + n) for s, n in box)] = piece.view([n for _, n in box])
    return whole.view(sizes)


def _boxed(value: torch.Tensor, shape: tuple[tuple[int, ...], ...], box: Box) -> torch.Tensor:
    factors = [n for axis in shape for n in axis]
    whole = value.reshape(factors)
    if box == tuple((0, n) for n in factors):
        return whole
    return whole[tuple(slice(s, s + n) for s, n in box)]


def shape_of(shape: tuple[tuple[Any, ...], ...], at: At, message: Message) -> tuple[tuple[int, ...], ...]:
    """The factors of the local tensor at these time indices, axis by axis, with sizes of unequal parts filled in."""
    if not message.uneven:
        return shape
    positions = itertools.count()
    return tuple(tuple(_uneven(next(positions), n, at, message) for n in axis) for axis in shape)


def _box(box: Box, at: At, message: Message) -> Box:
    return tuple(
        (start, _uneven(position, length, at, message)) if position in message.uneven else (start, length)
        for position, (start, length) in enumerate(box)
    )


def _uneven(position: int, size: int, at: At, message: Message) -> int:
    if position not in message.uneven:
        return size
    index, sizes = message.uneven[position]
    return sizes[at[message.time.index(index)]]
