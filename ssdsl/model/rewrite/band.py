"""The band of a mask: how far before and behind its own position a query sees keys.

A mask may depend on data: `window & (document[q] == document[k])`. Then the known side bounds it. So each element is
followed through the operators that make a mask as two bits, whether it may be true and whether it may be false. Of long
masks only the positions are computed that they compare:

    key <= query, key > query - 4        rows 0..n and columns 0..n: a query sees 3 keys before its own, and none behind
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.graph import Ref
from ssdsl.model.rewrite.constants import CHOICES
from ssdsl.model.rewrite.mask_numbers import BLOCK, LONGEST, MaskNumbers

Reach = tuple[int, int]  # the keys that queries see before their own, and behind it, at most
aten = torch.ops.aten
AND = (aten.__and__, aten.bitwise_and, aten.logical_and)
OR = (aten.__or__, aten.bitwise_or, aten.logical_or)
NOT = (aten.bitwise_not, aten.logical_not)
SAME = (aten.expand, aten.alias, aten.clone, aten.detach, aten.lift_fresh, aten.contiguous)
MOVED = (aten.reshape, aten.view, aten.unsqueeze, aten.squeeze)
# whether the first operand is the lesser one, and whether both may be equal
COMPARES = {aten.le: (True, True), aten.lt: (True, False), aten.ge: (False, True), aten.gt: (False, False)}
DEEPEST = 100  # operators behind a mask that are followed


def band_of(mask: str, numbers: MaskNumbers) -> Reach | None:
    """The reach of a mask [.., queries, keys] with as many queries as keys; None if it is not known to hide any key."""
    size = numbers.shape(mask)[-1]
    found = _compared(mask, numbers) if size > LONGEST else _seen(mask, numbers)
    before, after = (min(max(0, n), size - 1) for n in found or (size, size))
    return None if (before, after) == (size - 1, size - 1) else (before, after)


# -- block by block ----------------------------------------------------------------------------------------------------


class _Bits(NamedTuple):
    """Whether elements may be true, and whether they may be false. Of scores: may be seen, may be hidden."""

    true: torch.Tensor
    false: torch.Tensor


ANY = _Bits(torch.tensor(True), torch.tensor(True))


def _seen(mask: str, numbers: MaskNumbers) -> Reach | None:
    """The reach of all elements of a mask. Most masks have none: their first query sees the last key, and their last
    query the first one, which is cheap to find out."""
    size = numbers.shape(mask)[-1]
    ends = ((slice(0, 1), -1), (slice(size - 1, size), 0))
    if all(bool(_flat(_Rows(numbers, row).of_mask(mask)).expand(1, size)[0, key]) for row, key in ends):
        return None
    before = after = 0
    for start in range(0, size, step := max(1, BLOCK // size)):
        rows = slice(start, min(size, start + step))
        seen = _Rows(numbers, rows).of_mask(mask)
        if seen.dim() == 0 and seen:
            return None
        at = torch.arange(rows.start, rows.stop)
        seen = _flat(seen).expand(len(at), size)
        shown = seen.any(-1)
        first, last = (x.to(torch.uint8).argmax(-1) for x in (seen, seen.flip(-1)))
        before = max(before, int((at - first).where(shown, 0).max()))
        after = max(after, int((size - 1 - last - at).where(shown, 0).max()))
    return before, after


def _flat(bits: torch.Tensor) -> torch.Tensor:
    """The elements for any batch and any head."""
    return bits.flatten(0, -3).any(0) if bits.dim() > 2 else bits


class _Rows:
    """The elements of some rows of masks, each followed once."""

    def __init__(self, numbers: MaskNumbers, rows: slice) -> None:
        self.numbers, self.rows = numbers, rows
        self.depth = 0
        self.bits: Callable[[str], _Bits] = functools.cache(self._bits)

    def of_mask(self, mask: str) -> torch.Tensor:
        """Whether elements of a mask may be seen. The least number hides one if each row of a constant shows
        another."""
        found = self.numbers.part(mask, self.rows)
        if found is None or found.dtype == torch.bool:
            return self.bits(mask).true
        least = torch.finfo(found.dtype).min
        shows = (found > least / 2).any(-1)
        return found > (least if found.dim() and bool(shows.all()) else -torch.inf)

    def _bits(self, value: str) -> _Bits:
        found, call = self.numbers.part(value, self.rows), self.numbers.calls.get(value)
        if found is not None:
            return _known(found)
        if call is None or len(call.outputs) > 1 or self.depth > DEEPEST:
            return ANY
        self.depth += 1
        bits = self._of(call, call.target.overloadpacket)
        self.depth -= 1
        return bits

    def _of(self, call: CapturedCall, packet: Any) -> _Bits:
        of = [self._operand(a) for a in call.args]
        if packet in AND:
            return _Bits(of[0].true & of[1].true, of[0].false | of[1].false)
        if packet in OR:
            return _Bits(of[0].true | of[1].true, of[0].false & of[1].false)
        if packet in NOT:
            return _Bits(of[0].false, of[0].true)
        if call.target in CHOICES:
            return _chosen(*of)
        if packet is aten.masked_fill:
            return _chosen(of[1], of[2], of[0])
        if packet is aten.add and not call.kwargs:
            return _Bits(of[0].true & of[1].true, of[0].false | of[1].false)
        if packet in SAME:
            return of[0]
        if packet in MOVED and _keeps_rows(call, self.numbers):
            return _Bits(*map(_flat, of[0]))
        return ANY

    def _operand(self, given: Any) -> _Bits:
        """The bits of an argument: of a tensor, or of a number."""
        if isinstance(given, Ref):
            return self.bits(given.value)
        return _known(torch.tensor(float(given))) if isinstance(given, (int, float)) else ANY


def _keeps_rows(call: CapturedCall, numbers: MaskNumbers) -> bool:
    """Whether a call that moves elements leaves the last two axes as they are."""
    own, given = (numbers.shape(value) for value in (call.outputs[0], call.refs()[0]))
    return len(own) > 1 and own[-2:] == given[-2:]


def _known(numbers: torch.Tensor) -> _Bits:
    """The bits of a constant: scores are hidden by minus infinity alone."""
    true = numbers if numbers.dtype == torch.bool else numbers > -torch.inf
    return _Bits(true, ~true)


def _chosen(chooses: _Bits, one: _Bits, other: _Bits) -> _Bits:
    return _Bits(*((chooses.true & a) | (chooses.false & b) for a, b in zip(one, other, strict=True)))


# -- by what is compared -----------------------------------------------------------------------------------------------


def _compared(value: str, numbers: MaskNumbers, *, negated: bool = False, depth: int = 0) -> Reach | None:
    """The reach of a long mask, or of its opposite; None if it is not known."""
    call = numbers.calls.get(value)
    if call is None or len(call.outputs) > 1 or depth > DEEPEST or not call.refs():
        return None
    packet = call.target.overloadpacket
    if packet in COMPARES:
        return _limits(call, numbers, negated)
    if packet in AND or packet in OR:
        both = [_compared(r, numbers, negated=negated, depth=depth + 1) for r in call.refs()]
        known = [reach for reach in both if reach is not None]
        if (packet in AND) is not negated:
            return _each(min, known)
        return _each(max, known) if len(known) == len(call.args) else None
    followed = _followed(call, numbers)
    if followed is None:
        return None
    turns = packet in NOT or packet is aten.masked_fill
    return _compared(followed, numbers, negated=negated ^ turns, depth=depth + 1)


def _followed(call: CapturedCall, numbers: MaskNumbers) -> str | None:
    """The value that a call's result only repeats, reverses, or makes scores of."""
    packet, first = call.target.overloadpacket, call.refs()[0]
    if call.target in CHOICES:
        return first if _is_hidden(call.args[2], numbers) else None
    if packet is aten.masked_fill:
        return str(call.args[1].value) if _is_hidden(call.args[2], numbers) else None
    keeps = packet in NOT or packet in SAME or (packet in MOVED and _keeps_rows(call, numbers))
    return first if keeps else None


def _is_hidden(given: Any, numbers: MaskNumbers) -> bool:
    """Whether an argument is minus infinity."""
    found = numbers.part(given.value, None) if isinstance(given, Ref) else given
    return found is not None and bool(found == -torch.inf)


def _each(chooses: Callable[..., int], known: list[Reach]) -> Reach | None:
    """The least, or the largest, numbers of some reaches."""
    if not known:
        return None
    before, after = zip(*known, strict=True)
    return chooses(before), chooses(after)


def _limits(call: CapturedCall, numbers: MaskNumbers, negated: bool) -> Reach | None:
    """The reach of a comparison of sums of positions: `query - key < 4`, or `abs(query - key) <= 2`."""
    less, inclusive = COMPARES[call.target.overloadpacket]
    if negated:
        less, inclusive = not less, not inclusive
    low, high = call.args[:2] if less else reversed(call.args[:2])
    maker = numbers.calls.get(low.value) if isinstance(low, Ref) else None
    is_absolute = maker is not None and maker.target.overloadpacket is aten.abs
    left, right = (_sum(a, numbers) for a in (maker.args[0] if maker is not None and is_absolute else low, high))
    if left is None or right is None:
        return None
    size = numbers.shape(call.outputs[0])[-1]
    limits = (_limit(sign * left - right, size, inclusive) for sign in ((1, -1) if is_absolute else (1,)))
    return _each(min, [reach for reach in limits if reach is not None])


def _limit(sums: "_Sum", size: int, inclusive: bool) -> Reach | None:
    """The reach of the pairs whose sum is less than zero, or is zero. If the keys' addends rise, a query sees the first
    keys, as many as are no larger than the opposite of its own addend; if they fall, the last keys."""
    at, (rows, columns) = torch.arange(size), (x.expand(size) for x in sums)
    rises, falls = bool((columns.diff() >= 0).all()), bool((columns.diff() <= 0).all())
    if rises == falls:
        return None
    seen = torch.searchsorted((columns if rises else columns.flip(0)).contiguous(), -rows, right=inclusive)
    farthest = int((seen - 1 - at if rises else at - (size - seen)).where(seen > 0, 0).max())
    return (size, max(0, farthest)) if rises else (max(0, farthest), size)


class _Sum(NamedTuple):
    """Elements that are sums of one addend for each row and one for each column."""

    rows: torch.Tensor
    columns: torch.Tensor

    def __sub__(self, other: "_Sum") -> "_Sum":
        return _Sum(self.rows - other.rows, self.columns - other.columns)

    def __rmul__(self, factor: Any) -> "_Sum":
        return _Sum(factor * self.rows, factor * self.columns)


def _sum(given: Any, numbers: MaskNumbers) -> _Sum | None:
    """A number, positions along rows or along columns, or the sum or difference of such."""
    none = torch.zeros(1, dtype=torch.float64)
    if not isinstance(given, Ref):
        return _Sum(none + given, none) if isinstance(given, (int, float)) else None
    shape, call = numbers.shape(given.value), numbers.calls.get(given.value)
    if len(shape) > 1 and 1 not in shape[-2:]:
        packet = None if call is None else call.target.overloadpacket
        if call is None or call.kwargs or packet not in (aten.sub, aten.add, *SAME):
            return None
        addends = [_sum(a, numbers) for a in call.args[: 1 if packet in SAME else 2]]
        if None in addends:
            return None
        first, *others = (a for a in addends if a is not None)
        return first - (1 if packet is aten.sub else -1) * others[0] if others else first
    found = numbers.part(given.value, slice(0, max(shape[-2:], default=1)))
    if found is None or found.is_floating_point() or found.numel() not in (1, *found.shape[-2:]):
        return None
    along = found.double().flatten()
    return _Sum(along, none) if found.dim() > 1 and found.shape[-2] > 1 else _Sum(none, along)
