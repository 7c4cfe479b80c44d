"""Communication: collectives between layouts, and messages between devices.

A step turns one layout of a tensor into another, along `axes` of its submesh. Its payload `elements` is the number of
elements that an all_reduce sums, an all_gather returns, a reduce_scatter is given, or an all_to_all exchanges, on one
device. docs/extending.md shows how to add a collective.

A step may also be `in_time`: along an index, whose parts run one after another on the same devices. It relates the
tensors of these tasks as a step along an axis relates those of devices, and nothing travels.
"""

import math
from collections.abc import Iterable, Iterator
from typing import ClassVar

from ssdsl.ir.layout import Cut, Shape, Submesh
from ssdsl.ir.value import TimeIndex
from ssdsl.plan.regions import overlapping
from ssdsl.record import Record, field_names, replace
from ssdsl.runtime.layout.regions import length, pieces


class _InTime(Record, kw_only=True, repr_omit_defaults=True):
    in_time: bool = False


class _Along(_InTime):
    """A step along axes, or along an index in time (then `axes` is its name), with its payload. `kind` is its name in
    the runtime, the simulator and the views."""

    kind: ClassVar[str]

    axes: tuple[str, ...]
    elements: int


class AllReduce(_Along):
    """Partial -> Replicate, along one axis or several at once."""

    kind = "all_reduce"


class AllGather(_Along):
    """Shard -> Replicate. `source` is where the digit lies in the gathered tensor."""

    kind = "all_gather"

    source: Cut


class ReduceScatter(_Along):
    """Partial -> Shard. `target` is where the digit lies in the tensor that is reduced."""

    kind = "reduce_scatter"

    target: Cut


class AllToAll(_Along):
    """Shard -> Shard of other digits, one for each axis: `target` is where the digits that are cut out lie in the
    tensor before, `source` where those that are put back lie in the tensor after. The place of the second digit is that
    in a part along the first axis, and so on."""

    kind = "all_to_all"

    source: tuple[Cut, ...]
    target: tuple[Cut, ...]


class Exchange(_Along):
    """Regions -> regions of the same axis: each device sends others what they need of its part.

    `sums`: positions that several devices have are added (a gradient, a partial sum); else they are equal. `elements`
    is the most that a device receives.
    """

    kind = "exchange"

    source: Cut
    target: Cut
    sums: bool

    def sends(self) -> Iterator[tuple[int, int, int]]:
        """Yields the elements that a device sends another, behind the numbers of the two among the devices."""
        have, need = self.source.at or (), self.target.at or ()
        received = [
            (p.peer, me, length(p.received))
            for me in range(len(need))
            for p in pieces(have, need, me, sums=self.sums)
            if p.peer != me and p.received
        ]
        most = max((sum(n for _, to, n in received if to == me) for me in range(len(need))), default=0)
        yield from ((sender, to, n * self.elements // most) for sender, to, n in received)

    @property
    def read_by(self) -> tuple[tuple[int, ...], ...]:
        """For each part, the numbers of the parts whose positions it needs."""
        return overlapping(self.target.at or (), self.source.at or ())


class Narrow(_Along):
    """Replicate -> Shard: keeps this device's part; nothing travels."""

    kind = "narrow"

    target: Cut


class KeepFirst(_Along):
    """Replicate -> Partial: the first device keeps the value, the others have zeros; nothing travels."""

    kind = "keep_first"


Step = AllReduce | AllGather | ReduceScatter | AllToAll | Exchange | Narrow | KeepFirst


def cuts_of(step: Step) -> tuple[Cut, ...]:
    """The cuts of the step's digits in the local tensor: its `source`, its `target`, or both in this order."""
    found = (getattr(step, name) for name in field_names(step) if name in ("source", "target"))
    return tuple(cut for cuts in found for cut in ((cuts,) if isinstance(cuts, Cut) else cuts))


def joined_cuts(cuts: Iterable[Cut]) -> tuple[Cut, ...]:
    """The same parts by fewer cuts: those of axes whose digits lie side by side are one, with the last axis innermost.

    >>> joined_cuts((Cut(0, 2, 4), Cut(0, 2, 3), Cut(1, 1, 2)))
    (Cut(dim=0, outer=2, count=12, at=None), Cut(dim=1, outer=1, count=2, at=None))
    """
    found: list[Cut] = []
    for cut in cuts:
        if found and (found[-1].dim, found[-1].outer) == (cut.dim, cut.outer):
            found[-1] = replace(cut, count=found[-1].count * cut.count)
        else:
            found.append(cut)
    return tuple(found)


def travels(step: Step) -> bool:
    """Whether devices exchange any data in a step."""
    return not isinstance(step, Narrow | KeepFirst) and not step.in_time and step.elements > 0


# -- messages between devices ------------------------------------------------------------------------------------------


class BoxPiece(Record):
    """A box that one device of a move sends to another. `source` and `target` are their coordinates on the axes that
    are not aligned; `source_box` and `target_box` are the box's place in what each of them has."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    source_box: tuple[tuple[int, int], ...]
    target_box: tuple[tuple[int, int], ...]


class Move(Record):
    """One direction of a transfer. Devices at the same coordinates on the `aligned` axes exchange `pieces`.

    A box is a (start, length) for every factor of the local tensor, which has shape `source_shape` / `target_shape`.
    With `broadcast`, pieces that are one box of one device leave it once, and go from receiver to receiver.
    """

    aligned: tuple[str, ...]
    pieces: tuple[BoxPiece, ...]
    source_shape: Shape
    target_shape: Shape
    broadcast: bool = False

    @property
    def repeats(self) -> bool:
        """Whether some device sends one box to several."""
        return len({(p.source, p.source_box) for p in self.pieces}) < len(self.pieces)

    def paths(self, source: Submesh, target: Submesh) -> Iterator[tuple[tuple[int, ...], int]]:
        """The ranks along which each piece travels, its sender first, and its elements, for all aligned coordinates.

        A broadcast goes around its ranks in their order, as around a ring of NCCL: it enters each other host once.
        """
        first = dict.fromkeys(self.aligned, 0)
        leaving: dict[object, tuple[int, list[int], int]] = {}
        for number, p in enumerate(self.pieces):
            sender, elements = source.rank(first, p.source), math.prod(n for _, n in p.source_box)
            one = leaving.setdefault((p.source, p.source_box) if self.broadcast else number, (sender, [], elements))
            one[1].append(target.rank(first, p.target))
        sides = [{a: (n, stride) for a, n, stride in side.strides} for side in (source, target)]
        shifts = [(0, 0)]
        for axis in self.aligned:
            (n, sends), (_, gets) = (side[axis] for side in sides)
            shifts = [(s + c * sends, t + c * gets) for s, t in shifts for c in range(n)]
        return (
            (_around(sender + here, [r + there for r in receivers]), elements)
            for here, there in shifts
            for sender, receivers, elements in leaving.values()
        )


def _around(sender: int, receivers: list[int]) -> tuple[int, ...]:
    """The sender, the receivers of higher ranks, then those of lower ranks. A sender that has to keep the box, too, is
    a path of its own only where nobody else gets it."""
    if len(receivers) == 1:
        return sender, receivers[0]
    return sender, *sorted({*receivers} - {sender}, key=lambda rank: (rank < sender, rank))


class Transfer(Record):
    """A value of one function, `producer`, that another, `consumer`, reads on other devices: forward, and its gradient
    back. Both are numbers of functions.

    `source_slot` and `target_slot` are the slots in which the two ends keep the value. `uneven` are the factors whose
    size varies with an index in time. Messages of one `lane` have the same order on every device, values and gradients
    separately.
    """

    number: int
    value: str
    producer: int
    consumer: int
    source: Submesh
    target: Submesh
    source_slot: str
    target_slot: str
    forward: Move
    backward: Move | None
    dtype: str
    time: tuple[TimeIndex, ...]
    uneven: tuple[tuple[int, TimeIndex], ...] = ()
    lane: int = 0

    def ends(self, gradient: bool) -> tuple[Submesh, Submesh]:
        """The submeshes that send and receive the value, or its gradient."""
        return (self.target, self.source) if gradient else (self.source, self.target)


class Signal(Record):
    """An `order` across devices that share no data: the later task waits until the earlier one is done. It sends one
    byte."""

    dtype: ClassVar[str] = "uint8"

    number: int
    producer: int
    consumer: int
    source: Submesh
    target: Submesh
    forward: Move
    lane: int = 0

    def ends(self, gradient: bool) -> tuple[Submesh, Submesh]:
        """The submesh that signals, and the one that waits."""
        assert not gradient, "a signal has no gradient"
        return self.source, self.target


Message = Transfer | Signal


def functions_of(message: Message, gradient: bool) -> tuple[int, int]:
    """The numbers of the functions that make and read the value of a message, or its gradient."""
    return (message.consumer, message.producer) if gradient else (message.producer, message.consumer)
