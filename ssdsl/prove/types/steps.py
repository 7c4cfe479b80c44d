"""Communication as a function on types: the local tensor that a step makes from another one, or why it cannot."""

import itertools
import math
from functools import lru_cache
from typing import assert_never

from ssdsl.ir.comm import AllGather, AllReduce, AllToAll, Exchange, KeepFirst, Narrow, ReduceScatter, Step
from ssdsl.ir.layout import Cut
from ssdsl.ir.value import Axis, Coordinate, Time, TimeIndex
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.types.local import Axes, Factors, Local, LocalDigit, covered, designated, in_parts, largest, on_axes

Over = tuple[Coordinate, ...]  # axes, or one index in time


def after(
    steps: tuple[Step, ...],
    local: Local,
    shape: Factors,
    axes: Axes,
    time: tuple[TimeIndex, ...] = (),
    *,
    is_gradient: bool = False,
) -> Local:
    """The type after some steps, for a local tensor of a value of this shape. Raises Wrong if a step does not fit.

    Where regions overlap, devices have the same positions of a value, and addends of a gradient.
    """
    for step in steps:
        if step.in_time and len(step.axes) != 1:
            raise Wrong(Rule.STEP, "one index in time", step.axes)
        sizes = {t.name: t.parts for t in time} if step.in_time else dict(axes)
        local = _after(step, local, shape, sizes, is_gradient=is_gradient)
    return local


def _after(step: Step, local: Local, shape: Factors, sizes: dict[str, int], *, is_gradient: bool) -> Local:
    over: Over = tuple((Time if step.in_time else Axis)(a) for a in step.axes)
    if not over or len(set(over)) != len(over) or any(a not in sizes for a in step.axes):
        raise Wrong(Rule.STEP, f"axes of the function: {', '.join(sizes)}", ", ".join(step.axes))
    match step:
        case AllReduce():
            if not local.partial.issuperset(over):
                raise Wrong(Rule.STEP, f"a partial sum over {', '.join(step.axes)}", local)
            result = local.summed(*over)
            _payload(step, shape, local)
        case KeepFirst():
            for axis in over:
                _must_be_same(local, axis)
            result = local.owing(*over)
            _payload(step, shape, local)
        case AllGather():
            axis = _one(over)
            digit, result = local.part(axis, Rule.STEP), local.freeing(axis)
            _is_there(digit, result, shape, step.source)
            _payload(step, shape, result)
        case ReduceScatter():
            axis = _one(over)
            if axis not in local.partial or local.digit(axis) is not None:
                raise Wrong(Rule.STEP, f"a partial sum over {axis.name}", local)
            result = local.summed(axis).fixing(axis, _cut_out(step.target, sizes[axis.name], local, shape))
            _payload(step, shape, local)
        case Narrow():
            for axis in over:
                _must_be_same(local, axis)
            result = _narrowed(step, over, tuple(sizes[a] for a in step.axes), local, shape)
            _payload(step, shape, local)
        case AllToAll():
            result = _transposed(step, over, tuple(sizes[a] for a in step.axes), local, shape)
            _payload(step, shape, local)
        case Exchange():
            result = _exchanged(step, over, tuple(sizes[a] for a in step.axes), local, shape, is_gradient=is_gradient)
        case _:
            assert_never(step)
    return result


def _narrowed(step: Narrow, over: Over, counts: tuple[int, ...], local: Local, shape: Factors) -> Local:
    """The type after the devices of some axes have kept their parts of what is the same on all of them."""
    if len(over) == 1:
        return local.fixing(over[0], _cut_out(step.target, counts[0], local, shape))
    at, _ = _regions(step.target, math.prod(counts), local, shape)
    for axis, digit in zip(over, on_axes(at.factor, at.size_in(shape), at.at or (), counts), strict=True):
        local = local if digit is None else local.fixing(axis, digit)
    return local


@lru_cache(maxsize=4096)
def _exchanged(
    step: Exchange,
    over: Over,
    counts: tuple[int, ...],
    local: Local,
    shape: Factors,
    *,
    is_gradient: bool,
) -> Local:
    """The type after an exchange among the devices of some axes, numbered with the last axis innermost: positions that
    several devices have are taken from one of them, or added."""
    digits, owed, without = [local.digit(axis) for axis in over], local.partial.intersection(over), local.summed(*over)
    for axis in over:
        without = without.freeing(axis)
    have, need = (_regions(place, math.prod(counts), without, shape) for place in (step.source, step.target))
    factor, size = have[0].factor, have[0].size_in(shape)
    fixed = [(axis, d) for axis, d in zip(over, digits, strict=True) if d is not None]
    names = ", ".join(a.name for a in over)
    if (
        any(d.factor != factor or local.along(d) not in ({*over}, {axis}) for axis, d in fixed)
        or need[0].factor != factor
        or have[1] != [_positions(digits, counts, device, size) for device in itertools.product(*map(range, counts))]
        or not (fixed or owed)
    ):
        raise Wrong(Rule.STEP, f"the regions of {names} that are exchanged: {have[0]}", local)
    if step.sums and len(fixed) + len(owed) != len(over):
        raise Wrong(Rule.STEP, "parts or addends along each axis", local)
    if step.sums != (is_gradient or bool(owed)):
        raise Wrong(Rule.STEP, "a sum of addends" if not step.sums else "a value that devices share", step)
    given = frozenset[int]().union(*have[1])
    if not step.sums and not all(positions <= given for positions in need[1]):  # a sum of no addends is zero
        raise Wrong(Rule.STEP, "positions that some device has", step.target)
    parts = on_axes(factor, size, need[0].at or (), counts)
    if is_gradient and any(sum(d.counts) != len(covered(sum(d.at, ()))) for d in parts if d is not None and d.at):
        raise Wrong(Rule.STEP, "each position on one device, as each has the sum", step.target)
    result = without
    for axis, part in zip(over, parts, strict=True):
        result = result if part is None else result.fixing(axis, part)
    rest = largest(shape, without)
    if fixed:
        own = [len(have_ & need_) for have_, need_ in zip(have[1], need[1], strict=True)]
        all_of = [sum(len(h & n) for h in have[1]) if step.sums else len(n) for n in need[1]]
        wanted = max(a - o for a, o in zip(all_of, own, strict=True)) * (rest // size)
        if step.elements != wanted:
            raise Wrong(Rule.ELEMENTS, wanted, step.elements)
    return result


def _positions(
    digits: list[LocalDigit | None], counts: tuple[int, ...], device: tuple[int, ...], size: int
) -> frozenset[int]:
    """The positions of a factor that a device has, given the digits of the axes and its numbers along them."""
    found, number = frozenset(range(size)), 0
    for coordinate, count in zip(device, counts, strict=True):
        number = number * count + coordinate
    for digit, coordinate in zip(digits, device, strict=True):
        if digit is not None and digit.at is not None:
            found &= covered(digit.at[number if digit.parts == math.prod(counts) else coordinate])
        elif digit is not None:
            found &= {p for p in range(size) if p // digit.stride % digit.parts == coordinate}
    return found


def _regions(place: Cut, parts: int, local: Local, shape: Factors) -> tuple[LocalDigit, list[frozenset[int]]]:
    """The digit of parts that are regions, and the positions of each part."""
    digit = designated(shape, frozenset(local.fixed()), place)
    if digit.at is None or digit.parts != parts:
        raise Wrong(Rule.CUT, f"regions of {parts} parts", place)
    return digit, [covered(runs) for runs in digit.at]


def _transposed(step: AllToAll, over: Over, counts: tuple[int, ...], local: Local, shape: Factors) -> Local:
    """The type after an all_to_all: along each axis another digit. All digits before and after are fixed at once in
    what one device sends another."""
    if not len(over) == len(step.source) == len(step.target):
        raise Wrong(Rule.STEP, "a digit before and after, along each axis", step)
    block = result = local  # `block` is what goes from one device to another
    for axis in over:
        result = result.freeing(axis)
    for axis, count, place in zip(over, counts, step.target, strict=True):
        new = _cut_out(place, count, block, shape)
        if new.at is not None and len(over) > 1:
            raise Wrong(Rule.CUT, "equal parts", new)
        block, result = block.fixing(axis, new), result.fixing(axis, new)
    joined = result
    for axis, place in zip(over, step.source, strict=True):
        digit = local.part(axis, Rule.STEP)
        _is_there(digit, joined, shape, place)
        joined = joined.fixing(axis, digit)
    return result


def _one(over: Over) -> Coordinate:
    if len(over) != 1:
        raise Wrong(Rule.STEP, "one axis", ", ".join(a.name for a in over))
    return over[0]


def _must_be_same(local: Local, axis: Coordinate) -> None:
    if axis in local.partial or local.digit(axis) is not None:
        raise Wrong(Rule.STEP, f"the same tensor along {axis.name}", local)


def _cut_out(place: Cut, parts: int, local: Local, shape: Factors) -> LocalDigit:
    """The digit that a cut takes out of a local tensor, one value for each device."""
    digit = designated(shape, frozenset(local.fixed()), place)
    if digit.parts != parts:
        raise Wrong(Rule.CUT, f"{parts} parts", place)
    if digit.at is not None:  # a plain digit, if that has the same parts
        digit = in_parts(digit.factor, digit.size_in(shape), digit.at) or digit
    return digit


def _is_there(digit: LocalDigit, without: Local, shape: Factors, place: Cut) -> None:
    """Raises Wrong unless `place` is the place of the digit in `without`, the tensor in which it is not fixed."""
    found = designated(shape, frozenset(without.fixed()), place)
    if found != digit:
        raise Wrong(Rule.CUT, f"{digit.parts} parts of {digit.stride}, factor {digit.factor}", f"{place}: {found}")


def _payload(step: Step, shape: Factors, local: Local) -> None:
    if step.elements != (wanted := largest(shape, local)):
        raise Wrong(Rule.ELEMENTS, wanted, step.elements)
