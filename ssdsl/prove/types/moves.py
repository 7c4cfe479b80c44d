"""Checks transfers: the pieces that travel are, together, exactly the tensor that arrives.

Devices at the same coordinates on the aligned axes exchange pieces, so these axes must fix the same digit at both ends.
At each coordinate on the other axes, the pieces must cover the local tensor once, and each piece must be the same part
of the whole value at both ends.
"""

import itertools
import math
from functools import lru_cache

from ssdsl.ir.comm import BoxPiece, Move
from ssdsl.ir.value import Axis
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.types.local import Axes, Factors, Local, LocalDigit, free_runs

Held = tuple[tuple[LocalDigit, int], ...]  # the fixed digits of a factor, with their values


@lru_cache(maxsize=4096)
def check_move(move: Move, before: Local, source: Axes, after: Local, target: Axes, shape: Factors) -> None:
    """Raises Wrong unless the move turns `before`, on the source's devices, into `after` on the target's."""
    for local in (before, after):
        if any(isinstance(c, Axis) for c in local.partial):
            raise Wrong(Rule.PIECES, "a value whose sums over devices are complete", local)
    sizes, there = dict(source), dict(target)
    for axis in move.aligned:
        if sizes.get(axis) != there.get(axis) or axis not in sizes:
            raise Wrong(Rule.PIECES, f"an axis `{axis}` of one size at both ends", f"{source}, {target}")
        if before.digit(Axis(axis)) != after.digit(Axis(axis)):
            raise Wrong(Rule.PIECES, f"{before} along `{axis}`", after)
    factors = tuple(n for axis in shape for n in axis)
    for local, written, end in ((before, move.source_shape, "sent"), (after, move.target_shape, "received")):
        wanted = _local(shape, local)
        if written.axes != wanted:
            raise Wrong(Rule.PIECES, f"{wanted} is {end}", written.axes)
    out, into = (tuple((a, n) for a, n in axes if a not in move.aligned) for axes in (source, target))
    received: dict[tuple[int, ...], list[BoxPiece]] = {}
    for piece in move.pieces:
        received.setdefault(piece.target, []).append(piece)
    wanted_targets = set(itertools.product(*(range(n) for _, n in into)))
    if received.keys() != wanted_targets:
        raise Wrong(Rule.PIECES, f"pieces for all of {into}", f"for {len(received)} of {len(wanted_targets)}")
    for coordinates, pieces in received.items():
        _check_cover(pieces, move.target_shape.factors, coordinates)
        mine = _values(after, into, coordinates)
        for piece in pieces:
            if len(piece.source) != len(out) or any(
                not 0 <= c < n for c, (_, n) in zip(piece.source, out, strict=True)
            ):
                raise Wrong(Rule.PIECES, f"a device of {out}", piece.source)
            theirs = _values(before, out, piece.source)
            _check_same(piece, factors, theirs, mine, move)


def _local(shape: Factors, local: Local) -> Factors:
    """The local size of every factor; that of the largest part if parts are unequal."""
    left = [n for axis in shape for n in axis]
    for digit in local.fixed():
        left[digit.factor] = max(digit.counts) if digit.at is not None else left[digit.factor] // digit.parts
    it = iter(left)
    return tuple(tuple(next(it) for _ in axis) for axis in shape)


def _values(local: Local, axes: Axes, coordinates: tuple[int, ...]) -> dict[int, Held]:
    """The fixed digits by factor, each with its value: the coordinate for digits of these axes, and 0 for all others,
    which are the same at both ends."""
    at = dict(zip((a for a, _ in axes), coordinates, strict=True))
    found: dict[int, Held] = {}
    for c, d in sorted(local.digits, key=lambda item: -item[1].stride):
        value = at.get(c.name, 0) if isinstance(c, Axis) else 0
        found[d.factor] = (*found.get(d.factor, ()), (d, value))
    return found


def _check_cover(pieces: list[BoxPiece], sizes: tuple[int, ...], device: tuple[int, ...]) -> None:
    boxes = [p.target_box for p in pieces]
    inside = all(
        len(b) == len(sizes) and all(s >= 0 and n >= 1 and s + n <= size for (s, n), size in zip(b, sizes, strict=True))
        for b in boxes
    )
    apart = all(
        any(s + n <= t or t + m <= s for (s, n), (t, m) in zip(a, b, strict=True))
        for a, b in itertools.combinations(boxes, 2)
    )
    volume = sum(math.prod(n for _, n in b) for b in boxes)
    if not inside or not apart or volume != math.prod(sizes):
        raise Wrong(Rule.PIECES, f"each element of {sizes} once on device {device}", boxes)


def _check_same(
    piece: BoxPiece, factors: tuple[int, ...], theirs: dict[int, Held], mine: dict[int, Held], move: Move
) -> None:
    """Raises Wrong unless a piece is the same box of the whole value at both ends."""
    if len(piece.source_box) != len(factors):
        raise Wrong(Rule.PIECES, f"a box of {len(factors)} factors", piece.source_box)
    for f, size in enumerate(factors):
        (s, n), (t, m) = piece.source_box[f], piece.target_box[f]
        if n != m or s < 0 or s + n > move.source_shape.factors[f]:
            raise Wrong(Rule.PIECES, f"{m} positions of factor {f}", piece.source_box[f])
        here, there = theirs.get(f, ()), mine.get(f, ())
        if any(d.at is not None for d, _ in (*here, *there)):
            whole = (0, move.source_shape.factors[f])
            if [d for d, _ in here] != [d for d, _ in there] or (s, n) != whole or (t, m) != whole:
                raise Wrong(Rule.PIECES, f"all of factor {f}, whose parts are unequal", piece)
        elif (here, s) != (there, t) and positions(size, here, s, n) != positions(size, there, t, m):
            raise Wrong(Rule.PIECES, f"positions {positions(size, there, t, m)}", positions(size, here, s, n))


@lru_cache(maxsize=65536)
def positions(size: int, fixed: Held, start: int, length: int) -> tuple[tuple[int, int], ...]:
    """The positions, in the whole factor, of a range of its free positions: as runs of (start, length).

    >>> positions(16, ((LocalDigit(0, 8, 2), 1),), 2, 4)               # the upper half, from its third
    ((10, 4),)
    >>> positions(16, ((LocalDigit(0, 2, 2), 1),), 2, 4)               # every second pair
    ((6, 2), (10, 2))
    """
    base = sum(d.stride * value for d, value in fixed)
    runs = [
        (r.stride, r.count or 0) for r in free_runs(size, fixed[0][0].factor if fixed else 0, (d for d, _ in fixed))
    ]
    block = runs[-1][1] if runs and runs[-1][0] == 1 else 1
    upper = runs[:-1] if runs and runs[-1][0] == 1 else runs
    found: list[tuple[int, int]] = []
    at = start
    while at < start + length:
        inside = min(block - at % block, start + length - at)
        number, where = at // block, base + at % block
        for stride, count in reversed(upper):
            where += number % count * stride
            number //= count
        if found and sum(found[-1]) == where:
            found[-1] = (found[-1][0], found[-1][1] + inside)
        else:
            found.append((where, inside))
        at += inside
    return tuple(found)
