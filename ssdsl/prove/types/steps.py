"""Communication as a function on types: the local tensor that a step makes from another one, or why it cannot."""

from typing import assert_never

from ssdsl.ir.comm import AllGather, AllReduce, AllToAll, Exchange, KeepFirst, Narrow, ReduceScatter, Step
from ssdsl.ir.layout import Cut
from ssdsl.ir.value import Axis
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.types.local import Axes, Digit, Factors, Local, covered, designated, in_parts, largest


def after(steps: tuple[Step, ...], local: Local, shape: Factors, axes: Axes, *, is_gradient: bool = False) -> Local:
    """The type after some steps, for a local tensor of a value of this shape. Raises Wrong if a step does not fit.

    Where regions overlap, devices have the same positions of a value, and addends of a gradient.
    """
    for step in steps:
        local = _after(step, local, shape, axes, is_gradient=is_gradient)
    return local


def _after(step: Step, local: Local, shape: Factors, axes: Axes, *, is_gradient: bool) -> Local:
    sizes = dict(axes)
    over = tuple(Axis(a) for a in step.axes)
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
            digit = local.digit(axis)
            if digit is None or axis in local.partial:
                raise Wrong(Rule.STEP, f"parts along {axis.name}", local)
            result = local.freeing(axis)
            _is_there(digit, result, shape, step.source)
            _payload(step, shape, result)
        case ReduceScatter():
            axis = _one(over)
            if axis not in local.partial or local.digit(axis) is not None:
                raise Wrong(Rule.STEP, f"a partial sum over {axis.name}", local)
            result = local.summed(axis).fixing(axis, _cut_out(step.target, sizes[axis.name], local, shape))
            _payload(step, shape, local)
        case Narrow():
            axis = _one(over)
            _must_be_same(local, axis)
            result = local.fixing(axis, _cut_out(step.target, sizes[axis.name], local, shape))
            _payload(step, shape, local)
        case AllToAll():
            axis = _one(over)
            digit = local.digit(axis)
            if digit is None or axis in local.partial:
                raise Wrong(Rule.STEP, f"parts along {axis.name}", local)
            result = local.freeing(axis).fixing(axis, _cut_out(step.target, sizes[axis.name], local, shape))
            _is_there(digit, result, shape, step.source)
            _payload(step, shape, local)
        case Exchange():
            result = _exchanged(step, _one(over), sizes[step.axes[0]], local, shape, is_gradient=is_gradient)
        case _:
            assert_never(step)
    return result


def _exchanged(step: Exchange, axis: Axis, parts: int, local: Local, shape: Factors, *, is_gradient: bool) -> Local:
    """The type after an exchange: positions that several devices have are taken from one of them, or added."""
    digit, owed = local.digit(axis), axis in local.partial
    without = local.freeing(axis).summed(axis)
    have, need = (_regions(place, parts, without, shape) for place in (step.source, step.target))
    if have[0] != digit or (digit is None and not owed):
        raise Wrong(Rule.STEP, f"the regions of {axis.name} that are exchanged: {have[0]}", local)
    if step.sums != (is_gradient or owed):
        raise Wrong(Rule.STEP, "a sum of addends" if not step.sums else "a value that devices share", step)
    given = frozenset[int]().union(*have[1])
    if not step.sums and not all(positions <= given for positions in need[1]):  # a sum of no addends is zero
        raise Wrong(Rule.STEP, "positions that some device has", step.target)
    if is_gradient and need[0] is not None and sum(map(len, need[1])) != len(frozenset().union(*need[1])):
        raise Wrong(Rule.STEP, "each position on one device, as each has the sum", step.target)
    result = without if need[0] is None else without.fixing(axis, need[0])
    rest = largest(shape, without)
    if digit is not None:
        own = [len(have_ & need_) for have_, need_ in zip(have[1], need[1], strict=True)]
        all_of = [sum(len(h & n) for h in have[1]) if step.sums else len(n) for n in need[1]]
        wanted = max(a - o for a, o in zip(all_of, own, strict=True)) * (rest // _size(digit, shape))
        if step.elements != wanted:
            raise Wrong(Rule.ELEMENTS, wanted, step.elements)
    return result


def _regions(place: Cut, parts: int, local: Local, shape: Factors) -> tuple[Digit | None, list[frozenset[int]]]:
    """The digit of parts that are regions, None if each part is the whole factor; and the positions of each part."""
    digit = designated(shape, frozenset(local.fixed()), place)
    if digit.at is None or digit.parts != parts:
        raise Wrong(Rule.CUT, f"regions of {parts} parts", place)
    return in_parts(digit.factor, _size(digit, shape), digit.at), [covered(runs) for runs in digit.at]


def _size(digit: Digit, shape: Factors) -> int:
    return [n for axis in shape for n in axis][digit.factor]


def _one(over: tuple[Axis, ...]) -> Axis:
    if len(over) != 1:
        raise Wrong(Rule.STEP, "one axis", ", ".join(a.name for a in over))
    return over[0]


def _must_be_same(local: Local, axis: Axis) -> None:
    if axis in local.partial or local.digit(axis) is not None:
        raise Wrong(Rule.STEP, f"the same tensor along {axis.name}", local)


def _cut_out(place: Cut, parts: int, local: Local, shape: Factors) -> Digit:
    """The digit that a cut takes out of a local tensor, one value for each device."""
    digit = designated(shape, frozenset(local.fixed()), place)
    if digit.parts != parts:
        raise Wrong(Rule.CUT, f"{parts} parts", place)
    if digit.at is not None:  # a plain digit, if that has the same parts
        digit = in_parts(digit.factor, _size(digit, shape), digit.at) or digit
    return digit


def _is_there(digit: Digit, without: Local, shape: Factors, place: Cut) -> None:
    """Raises Wrong unless `place` is the place of the digit in `without`, the tensor in which it is not fixed."""
    found = designated(shape, frozenset(without.fixed()), place)
    if found != digit:
        raise Wrong(Rule.CUT, f"{digit.parts} parts of {digit.stride}, factor {digit.factor}", f"{place}: {found}")


def _payload(step: Step, shape: Factors, local: Local) -> None:
    if step.elements != (wanted := largest(shape, local)):
        raise Wrong(Rule.ELEMENTS, wanted, step.elements)
