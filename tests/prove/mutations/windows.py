"""What goes wrong with regions: halos that are shifted, a part that takes another's place, sums that are not taken."""

from collections.abc import Iterator

from ssdsl.ir.comm import AllGather, Exchange, Narrow, Step
from ssdsl.ir.function import OpPart
from ssdsl.ir.layout import Cut
from ssdsl.ir.program import Program
from ssdsl.ir.value import Axis
from ssdsl.record import replace
from ssdsl.runtime.layout.regions import Regions
from tests.prove.mutations.mutant import Found, directions, instructions, mutation, put, with_function


def _shifted(at: Regions) -> Iterator[Regions]:
    """The first part by one position to the right, the last by one to the left, two parts in each other's place."""
    yield put(at, 0, tuple((start + 1, end + 1) for start, end in at[0]))
    if at[-1][0][0] > 0:
        yield put(at, len(at) - 1, tuple((start - 1, end - 1) for start, end in at[-1]))
    yield (*at[1:], at[0])
    yield put(at, 0, ((at[0][0][0], at[0][-1][1] - 1),))


def _cuts(cut: Cut) -> Iterator[Cut]:
    return (replace(cut, at=at) for at in _shifted(cut.at)) if cut.at is not None else iter(())


def _steps(step: Step) -> Iterator[Step]:
    if isinstance(step, Exchange):
        yield from (replace(step, source=cut) for cut in _cuts(step.source))
        yield from (replace(step, target=cut) for cut in _cuts(step.target))
        yield replace(step, sums=not step.sums)
        yield replace(step, source=step.target, target=step.source)
    elif isinstance(step, Narrow):
        yield from (replace(step, target=cut) for cut in _cuts(step.target))


@mutation
def regions_of_a_step(program: Program) -> Found:
    for where, instr, direction, become in directions(program):
        steps = getattr(instr, direction)
        for k, step in enumerate(steps):
            for n, other in enumerate(_steps(step)):
                yield f"{where} {k} way {n}", become(put(steps, k, other))


@mutation
def axes_of_regions(program: Program) -> Found:
    """Regions of axes together: of one of them alone, or numbered with another axis innermost."""
    for where, instr, direction, become in directions(program):
        steps = getattr(instr, direction)
        for k, step in enumerate(steps):
            if isinstance(step, Exchange | Narrow) and len(step.axes) > 1:
                for axes in (step.axes[1:], step.axes[:1]):
                    yield f"{where} {k} over {axes}", become(put(steps, k, replace(step, axes=axes)))
    for where, operator, becomes in instructions(program):
        if isinstance(operator, OpPart):
            for k, split in enumerate(operator.splits):
                if isinstance(split.coordinate, Axis) and split.coordinate.inner:
                    first, *others = split.coordinate.names
                    for other in (Axis(others[-1], (*others[:-1], first)), Axis(first)):
                        splits = put(operator.splits, k, replace(split, coordinate=other))
                        yield f"{where} cut by {other}", becomes(replace(operator, splits=splits))


@mutation
def window_of_another_part(program: Program) -> Found:
    for where, op, become in instructions(program):
        if not isinstance(op, OpPart):
            continue
        for k, part in enumerate(op.kernel.windows):
            others = [*map(Axis, part.coordinate.names)] if isinstance(part.coordinate, Axis) else []
            ways = (
                *(replace(part, coordinate=axis) for axis in others if axis != part.coordinate),
                replace(part, needs=(*part.needs[1:], part.needs[0])),
                replace(part, results=(*part.results[1:], part.results[0])),
                replace(part, needs=tuple((start + 1, end + 1) for start, end in part.needs)),
                replace(part, size=part.size + 1),
                replace(part, axis=part.axis - 1),
            )
            for n, other in enumerate(ways):
                kernel = replace(op.kernel, windows=put(op.kernel.windows, k, other))
                yield f"{where} {part.coordinate} way {n}", become(replace(op, kernel=kernel))
            yield f"{where} {part.coordinate} none", become(replace(op, kernel=replace(op.kernel, windows=())))


@mutation
def regions_of_joined_parts(program: Program) -> Found:
    """Of tiles, a part reads other rows than its windows need; or rows where other tiles lie."""
    for function in program.functions:
        for k, given in enumerate(function.inputs):
            for j, merge in enumerate(given.merges):
                if not isinstance(merge, Exchange):
                    continue
                all_ = AllGather(merge.axes, merge.elements, merge.source, in_time=True)
                for n, other in enumerate([all_, *_steps(merge)]):
                    changed = replace(given, merges=put(given.merges, j, other))
                    inputs = put(function.inputs, k, changed)
                    yield f"{function.name} input {k} way {n}", with_function(program, replace(function, inputs=inputs))
