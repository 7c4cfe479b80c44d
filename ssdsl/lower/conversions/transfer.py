"""Transfers between submeshes: which box of a tensor each device sends to which other device.

An axis that both submeshes have, with the same placement in both layouts, is aligned: devices exchange only with those
at the same coordinate. Over the other axes the boxes are intersected. A device keeps what it already has; otherwise the
devices that hold the same box take turns to send it. This works for any two layouts without partial sums.
"""

import itertools
from collections.abc import Iterator

from ssdsl.ir.comm import BoxPiece, Move
from ssdsl.ir.layout import REPLICATE, Layout, Shape, Shard, Submesh
from ssdsl.lower.operators.operand_types import inside as within
from ssdsl.plan.regions import nests

Run = tuple[int, int]  # where it begins, and its length
Box = tuple[Run, ...]
Coordinates = tuple[int, ...]


def plan_move(before: Layout, source: Submesh, after: Layout, target: Submesh, shape: Shape) -> Move:
    """The pieces that bring a tensor of `shape` from one submesh and layout to another; neither is partial.

    An axis of 12 goes from 2 devices to 3: device 1 of the target needs 4..8, half of it from each source.

    >>> from ssdsl.plan.plan import Mesh
    >>> from ssdsl.plan.regions import Digit
    >>> two, three = Submesh(Mesh("a", (("x", 2),), 0)), Submesh(Mesh("b", (("y", 3),), 2))
    >>> by = lambda parts: Layout((Shard(0, Digit(parts, 12 // parts)),))
    >>> for p in plan_move(by(2), two, by(3), three, Shape(((12,),))).pieces:
    ...     print(p.source, p.source_box, "->", p.target, p.target_box)
    (0,) ((0, 4),) -> (0,) ((0, 4),)
    (0,) ((4, 2),) -> (1,) ((0, 2),)
    (1,) ((0, 2),) -> (1,) ((2, 2),)
    (1,) ((2, 4),) -> (2,) ((0, 4),)
    """
    assert not before.is_partial and not after.is_partial
    aligned = _aligned(before, source, after, target)
    first = dict.fromkeys(aligned, 0)
    holders: dict[Box, dict[int, Coordinates]] = {}  # by rank
    for coordinates, box in _boxes(before, source, aligned, shape):
        holders.setdefault(box, {})[source.rank(first, coordinates)] = coordinates
    turns = {box: itertools.cycle(group.values()) for box, group in holders.items()}
    pieces, overlaps = [], _Overlaps([*holders])
    for coordinates, wanted in _boxes(after, target, aligned, shape):
        rank = target.rank(first, coordinates)
        for held in overlaps.of(wanted):
            piece, group = _intersect(wanted, held), holders[held]
            sender = group[rank] if rank in group else next(turns[held])
            pieces.append(BoxPiece(sender, coordinates, _within(piece, held), _within(piece, wanted)))
    return Move(aligned, tuple(pieces), shape.local(before.shards()), shape.local(after.shards()))


def keep_boxes(layout: Layout, shape: Shape, times: tuple[Shard, ...], uneven: frozenset[int] = frozenset()) -> Layout:
    """The layout with REPLICATE in place of each digit that leaves a device more than one box of a part in time.

    A part has one value of each of the digits `times`; a tensor travels part by part. A digit that is outermost in the
    part leaves one box; a digit inside others leaves several, so the tensor is sent whole along it. So it is for a
    factor in `uneven`, whose parts in time have unequal sizes: a device's box would differ from part to part.

    >>> from ssdsl.plan.regions import Digit
    >>> shape = Shape(((12,),))
    >>> halves, quarters = Shard(0, Digit(2, 6)), Shard(0, Digit(2, 3))
    >>> str(keep_boxes(Layout((halves,)), shape, ())), str(keep_boxes(Layout((quarters,)), shape, ()))
    ('[S(0)]', '[R]')
    >>> str(keep_boxes(Layout((quarters,)), shape, (halves,)))    # 12 = m 2 · dp 2 · 3: a box of each m
    '[S(0)]'
    """
    kept: set[Shard] = set()
    for factor, left in enumerate(shape.local(times).factors):
        if factor in uneven:
            continue
        others = tuple(s.digit for s in times if s.factor == factor)
        for shard in sorted((s for s in layout.shards() if s.factor == factor), key=lambda s: -s.digit.stride):
            (inside,) = within(Layout((shard,)), times).shards()
            if inside.digit.period != left or not nests((shard.digit, *others), shape.factors[factor]):
                break
            kept.add(shard)
            left = inside.digit.stride
    return Layout(tuple(REPLICATE if isinstance(p, Shard) and p not in kept else p for p in layout.places))


def _aligned(before: Layout, source: Submesh, after: Layout, target: Submesh) -> tuple[str, ...]:
    there = {name: (n, place) for (name, n), place in zip(target.axes, after.places, strict=True)}
    names = []
    for (name, n), place in zip(source.axes, before.places, strict=True):
        if there.get(name) == (n, place) and (not isinstance(place, Shard) or _outermost(place, before, after)):
            names.append(name)
    return tuple(names)


def _outermost(digit: Shard, *layouts: Layout) -> bool:
    """Whether no other digit of the layouts lies in the same factor: only then do boxes not depend on it."""
    return all(d == digit or d.factor != digit.factor for layout in layouts for d in layout.shards())


def _boxes(
    layout: Layout, submesh: Submesh, aligned: tuple[str, ...], shape: Shape
) -> Iterator[tuple[Coordinates, Box]]:
    """Yields for each device its coordinates on the axes that are not aligned, and the box that it holds of the part
    that the aligned digits leave."""
    free = [(n, p) for (a, n), p in zip(submesh.axes, layout.places, strict=True) if a not in aligned]
    cut = tuple(
        p for (a, _), p in zip(submesh.axes, layout.places, strict=True) if a in aligned and isinstance(p, Shard)
    )
    sizes = shape.local(cut).factors
    for coordinates in itertools.product(*(range(n) for n, _ in free)):
        box = [(0, size) for size in sizes]
        shards = [(p, c) for (_, p), c in zip(free, coordinates, strict=True) if isinstance(p, Shard)]
        for shard, c in sorted(shards, key=lambda item: -item[0].digit.stride):
            start, length = box[shard.factor]
            assert shard.digit.period == length, "the parts of a layout that travels are boxes"
            box[shard.factor] = (start + c * shard.digit.stride, shard.digit.stride)
        yield coordinates, tuple(box)


class _Overlaps:
    """Finds the boxes that overlap a given one, factor by factor: the boxes of a layout have few distinct runs in each
    factor."""

    def __init__(self, boxes: list[Box]) -> None:
        self.boxes = boxes
        self.runs: list[dict[Run, set[int]]] = []  # by factor, the numbers of the boxes that have a run there
        for number, box in enumerate(boxes):
            self.runs = self.runs or [{} for _ in box]
            for runs, run in zip(self.runs, box, strict=True):
                runs.setdefault(run, set()).add(number)
        self.known: dict[tuple[int, Run], set[int]] = {}

    def of(self, box: Box) -> list[Box]:
        """The boxes that overlap a given one, in their order."""
        found = set.intersection({*range(len(self.boxes))}, *(self._along(*at) for at in enumerate(box)))
        return [self.boxes[n] for n in sorted(found)]

    def _along(self, factor: int, run: Run) -> set[int]:
        if (factor, run) not in self.known:
            start, end = run[0], run[0] + run[1]
            found = (boxes for (low, length), boxes in self.runs[factor].items() if low < end and start < low + length)
            self.known[factor, run] = set().union(*found)
        return self.known[factor, run]


def _intersect(a: Box, b: Box) -> Box:
    """The intersection of two boxes that overlap. Runs are (start, length): (0, 4) and (2, 6) share (2, 2)."""
    pieces = []
    for (start, length), (other, other_length) in zip(a, b, strict=True):
        low, high = max(start, other), min(start + length, other + other_length)
        pieces.append((low, high - low))
    return tuple(pieces)


def _within(piece: Box, box: Box) -> Box:
    """A piece in the coordinates of the box that holds it."""
    return tuple((start - base, length) for (start, length), (base, _) in zip(piece, box, strict=True))
