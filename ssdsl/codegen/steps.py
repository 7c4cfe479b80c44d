"""Communication steps and conversions as Python."""

from collections.abc import Callable

from ssdsl.lower.layout import Cut
from ssdsl.lower.reshard import Step, StepKind
from ssdsl.lower.schedule import Conversion, Take, TimeIndex

GroupName = Callable[[tuple[str, ...]], str]


def step_text(step: Step, group: GroupName, *, in_place: bool = False) -> str:
    """One step: `all_gather(tp, dim=1)`, `all_reduce_(tp)` where it may work in place."""
    name = group(step.axes)
    match step.kind:
        case StepKind.ALL_REDUCE if in_place:
            return f"{step.kind}_({name})"
        case StepKind.ALL_REDUCE | StepKind.KEEP_FIRST:
            return f"{step.kind}({name})"
        case StepKind.ALL_GATHER:
            assert step.source is not None
            return f"{step.kind}({name}, {_place(step.source)})"
        case StepKind.REDUCE_SCATTER | StepKind.SLICE:
            assert step.target is not None
            return f"{step.kind}({name}, {_place(step.target)})"
        case StepKind.ALL_TO_ALL:
            assert step.source is not None and step.target is not None
            source, target = step.source, step.target
            return f"{step.kind}({name}, {(source.dim, source.outer)}, {(target.dim, target.outer)})"


def _place(cut: Cut) -> str:
    return f"dim={cut.dim}" + (f", outer={cut.outer}" if cut.outer != 1 else "")


def conversion_text(
    conversion: Conversion,
    value: str,
    time: tuple[TimeIndex, ...],
    group: GroupName,
    in_place: tuple[bool, bool] = (False, False),
) -> str:
    """The right-hand side that makes a value the result of a conversion.

    `in_place`: whether the first step may change the value, and the gradient.
    """
    result = value
    if conversion.forward or conversion.backward:
        sides = [
            f"{side}=[{', '.join(step_text(s, group, in_place=n == 0 and may) for n, s in enumerate(steps))}]"
            for side, steps, may in zip(
                ("forward", "backward"), (conversion.forward, conversion.backward), in_place, strict=True
            )
            if steps
        ]
        result = f"reshard({result}, {', '.join(sides)})"
    for taken in conversion.takes:
        result = _take_text(taken, result, time)
    return result


def _take_text(taken: Take, value: str, time: tuple[TimeIndex, ...]) -> str:
    sizes = next(t.sizes for t in time if t.name == taken.index)
    cut = taken.cut
    if sizes is not None:
        return f"take_sizes({value}, {cut.dim}, {cut.outer}, {sizes}, {taken.index})"
    return f"take({value}, {cut.dim}, {cut.outer}, {cut.count}, {taken.index})"
