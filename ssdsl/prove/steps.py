"""Communication as a function on types: which local tensor a step makes of which, or why it cannot."""

from typing import assert_never

from ssdsl.ir.comm import AllGather, AllReduce, AllToAll, KeepFirst, Narrow, ReduceScatter, Step
from ssdsl.ir.layout import Cut
from ssdsl.ir.value import Axis
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.local import Axes, Digit, Factors, Local, designated, elements


def after(steps: tuple[Step, ...], local: Local, shape: Factors, axes: Axes) -> Local:
    """What some steps make of a local tensor of a value of this shape; raises Wrong where one does not fit it."""
    for step in steps:
        local = _after(step, local, shape, axes)
    return local


def _after(step: Step, local: Local, shape: Factors, axes: Axes) -> Local:
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
        case _:
            assert_never(step)
    return result


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
    return digit


def _is_there(digit: Digit, without: Local, shape: Factors, place: Cut) -> None:
    """The digit is put back where `place` says, into a tensor that has not got it fixed."""
    found = designated(shape, frozenset(without.fixed()), place, digit.sizes)
    if found != digit:
        raise Wrong(Rule.CUT, f"{digit.parts} parts of {digit.stride}, factor {digit.factor}", f"{place}: {found}")


def _payload(step: Step, shape: Factors, local: Local) -> None:
    wanted = elements(shape, local)
    if wanted is not None and step.elements != wanted:  # of unequal parts it is a mean, and only a cost
        raise Wrong(Rule.ELEMENTS, wanted, step.elements)
