"""Values between devices: pieces are sent and received without waiting, and awaited where they are read."""

import time
from dataclasses import dataclass, field
from typing import Any

import torch

from .transport import Work
from .world import World

At = tuple[int, ...]
Key = tuple[str, At]
Box = tuple[tuple[int, int], ...]  # (start, length) per factor


@dataclass(frozen=True)
class Leg:
    """This rank's share of one direction: boxes to send to ranks, boxes to receive from ranks (its own: a copy).

    `sends_shape` and `gets_shape` are the local tensor's factors, axis by axis; a str is a size that varies with an
    index.
    """

    sends: tuple[tuple[int, Box], ...]
    gets: tuple[tuple[int, Box], ...]
    sends_shape: tuple[tuple[Any, ...], ...]
    gets_shape: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Transfer:
    """A value from where one block keeps it to where another looks for it; without slots, a signal."""

    source_slot: str
    target_slot: str
    forward: Leg
    backward: Leg | None
    dtype: torch.dtype
    time: tuple[str, ...] = ()
    uneven: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)


@dataclass
class Waiting:
    works: list[Work]
    buffers: list[tuple[Box, torch.Tensor]]
    shape: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    own: list[tuple[Box, torch.Tensor]]


class Mover:
    """Posts sends and receives in the order of the tasks, those of values and those of gradients in a group of their
    own; in each, every rank follows one global order, so none waits in a circle."""

    def __init__(self, device: torch.device, world: World) -> None:
        self.device = device
        self.world = world
        self.waited_s = 0.0
        self.sending: list[tuple[Work, torch.Tensor]] = []
        self.waiting: tuple[dict[Key, list[Waiting]], ...] = ({}, {})  # values; gradients, maybe from several readers

    def move(self, leg: Leg, value: torch.Tensor | None, key: Key, tag: int, at: At, transfer: Transfer) -> None:
        group = self.world.transfers[tag % 2]
        own: list[torch.Tensor] = []
        self.sending = [(w, t) for w, t in self.sending if not w.is_completed()]
        for peer, box in leg.sends:
            assert value is not None
            piece = _boxed(value, shape_of(leg.sends_shape, at, transfer), _box(box, at, transfer)).contiguous()
            if peer == self.world.rank:
                own.append(piece)
            else:
                self.world.count("send", piece)
                self.sending.append((self.world.transport.isend(piece, peer, group, tag), piece))
        if leg.gets:
            self._receive(leg, own, key, tag, at, transfer)

    def _receive(self, leg: Leg, own: list[torch.Tensor], key: Key, tag: int, at: At, transfer: Transfer) -> None:
        works, buffers, kept = [], [], []
        for peer, box in leg.gets:
            box = _box(box, at, transfer)
            if peer == self.world.rank:
                kept.append((box, own.pop(0)))
                continue
            buffer = torch.empty([length for _, length in box], dtype=transfer.dtype, device=self.device)
            works.append(self.world.transport.irecv(buffer, peer, self.world.transfers[tag % 2], tag))
            buffers.append((box, buffer))
        shape = shape_of(leg.gets_shape, at, transfer)
        self.waiting[tag % 2].setdefault(key, []).append(Waiting(works, buffers, shape, transfer.dtype, kept))

    def zeros(self, leg: Leg, at: At, transfer: Transfer) -> torch.Tensor:
        """What a leg sends where there is no gradient."""
        sizes = [_product(axis) for axis in shape_of(leg.sends_shape, at, transfer)]
        return torch.zeros(sizes, dtype=transfer.dtype, device=self.device)

    def arrive(self, key: Key, store: dict[Key, torch.Tensor], *, gradient: bool = False) -> None:
        """Waits for a value that was posted, if it was, and puts it where it is looked for; gradients are added up."""
        for waiting in self.waiting[gradient].pop(key, ()):
            start = time.perf_counter()
            for work in waiting.works:
                work.wait()
            self.waited_s += time.perf_counter() - start
            value = _assembled(waiting, self.device)
            store[key] = store[key] + value if gradient and key in store else value

    def finish(self) -> None:
        """Waits until everything that was sent has left."""
        for work, _ in self.sending:
            work.wait()
        self.sending.clear()


def _assembled(waiting: Waiting, device: torch.device) -> torch.Tensor:
    pieces = waiting.buffers + waiting.own
    sizes = [_product(axis) for axis in waiting.shape]
    if len(pieces) == 1:
        return pieces[0][1].view(sizes)
    factors = [n for axis in waiting.shape for n in axis]
    whole = torch.empty(factors, dtype=waiting.dtype, device=device)
    for box, piece in pieces:
        whole[tuple(slice(s, s + n) for s, n in box)] = piece.view([n for _, n in box])
    return whole.view(sizes)


def _boxed(value: torch.Tensor, shape: tuple[tuple[int, ...], ...], box: Box) -> torch.Tensor:
    factors = [n for axis in shape for n in axis]
    return value.reshape(factors)[tuple(slice(s, s + n) for s, n in box)]


def _product(axis: tuple[int, ...]) -> int:
    result = 1
    for n in axis:
        result *= n
    return result


def shape_of(shape: tuple[tuple[Any, ...], ...], at: At, transfer: Transfer) -> tuple[tuple[int, ...], ...]:
    """The factors of the local tensor at some indices in time, whose parts may be uneven."""
    if not transfer.uneven:
        return shape
    position = -1
    axes = []
    for axis in shape:
        sizes = []
        for n in axis:
            position += 1
            sizes.append(_uneven(position, n, at, transfer))
        axes.append(tuple(sizes))
    return tuple(axes)


def _box(box: Box, at: At, transfer: Transfer) -> Box:
    return tuple(
        (start, _uneven(position, length, at, transfer)) if position in transfer.uneven else (start, length)
        for position, (start, length) in enumerate(box)
    )


def _uneven(position: int, size: int, at: At, transfer: Transfer) -> int:
    if position not in transfer.uneven:
        return size
    index, sizes = transfer.uneven[position]
    return sizes[at[transfer.time.index(index)]]
