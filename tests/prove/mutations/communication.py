"""What goes wrong in communication inside of functions."""

from ssdsl.ir.comm import AllGather, AllReduce, AllToAll, Exchange, KeepFirst, Narrow, ReduceScatter, Step
from ssdsl.ir.function import (
    Backward,
    Conversion,
    Instr,
    OpPart,
    Write,
    results_of,
)
from ssdsl.ir.layout import Cut
from ssdsl.ir.program import Program
from ssdsl.ir.value import Name
from ssdsl.lower.functions.gather_again import is_gathered
from ssdsl.record import replace
from tests.prove.mutations.mutant import (
    Found,
    axes_of,
    cuts,
    directions,
    instructions,
    mutation,
    put,
    title,
    with_function,
)


@mutation
def write_dropped(program: Program) -> Found:
    """A buffer keeps its old value."""
    for where, instr, become in instructions(program):
        if isinstance(instr, Write):
            yield where, become()


@mutation
def write_changed(program: Program) -> Found:
    """A buffer takes the value in another part of itself, over all of itself, or takes another version of the value."""
    values = {v.name for f in program.functions for i in f.body() for v in results_of(i)}
    for where, instr, become in instructions(program):
        if isinstance(instr, Write):
            for other in sorted(values - {instr.source}):
                yield f"{where} {other}", become(replace(instr, source=other))
            for k, step in enumerate(instr.slices):
                yield f"{where} not {step}", become(replace(instr, slices=put(instr.slices, k)))
                for new in cuts(step.target):
                    yield (
                        f"{where} {new}",
                        become(replace(instr, slices=put(instr.slices, k, replace(step, target=new)))),
                    )
            yield f"{where} of another buffer", become(replace(instr, buffer=f"{instr.buffer}.other"))
            yield f"{where} twice", become(instr, instr)


@mutation
def step_dropped(program: Program) -> Found:
    for where, instr, direction, become in directions(program):
        steps = getattr(instr, direction)
        for k, step in enumerate(steps):
            yield f"{where} {step}", become(put(steps, k))


@mutation
def step_doubled(program: Program) -> Found:
    for where, instr, direction, become in directions(program):
        steps = getattr(instr, direction)
        for k, step in enumerate(steps):
            yield f"{where} {step}", become(put(steps, k, step, step))


@mutation
def step_of_another_group(program: Program) -> Found:
    for where, instr, direction, become in directions(program):
        steps = getattr(instr, direction)
        for k, step in enumerate(steps):
            for axis in axes_of(program):
                if (axis,) != step.axes:
                    yield f"{where} {step} over {axis}", become(put(steps, k, replace(step, axes=(axis,))))
            if len(step.axes) > 1:
                yield f"{where} {step} one axis less", become(put(steps, k, replace(step, axes=step.axes[1:])))


@mutation
def step_of_another_kind(program: Program) -> Found:
    for where, instr, direction, become in directions(program):
        steps = getattr(instr, direction)
        for k, step in enumerate(steps):
            for other in _other_kinds(step):
                yield f"{where} {type(step).__name__} to {type(other).__name__}", become(put(steps, k, other))


def _other_kinds(step: Step) -> list[Step]:
    whole = Cut(0, 1, 2)
    match step:
        case AllReduce():
            return [KeepFirst(step.axes, step.elements), ReduceScatter(step.axes, step.elements, whole)]
        case KeepFirst():
            return [AllReduce(step.axes, step.elements)]
        case ReduceScatter():
            return [Narrow(step.axes, step.elements, step.target), AllReduce(step.axes, step.elements)]
        case Narrow():
            return [ReduceScatter(step.axes, step.elements, step.target), AllReduce(step.axes, step.elements)]
        case AllGather():
            return [ReduceScatter(step.axes, step.elements, step.source), AllReduce(step.axes, step.elements)]
        case Exchange():
            return [AllGather(step.axes, step.elements, step.source), Narrow(step.axes, step.elements, step.target)]
        case AllToAll():
            (source, *_), (target, *_) = step.source, step.target
            return [AllGather(step.axes, step.elements, source), Narrow(step.axes, step.elements, target)]


@mutation
def step_added(program: Program) -> Found:
    for where, instr, direction, become in directions(program):
        steps = getattr(instr, direction)
        for axis in axes_of(program):
            yield f"{where} + all_reduce {axis}", become((*steps, AllReduce((axis,), instr.result.elements)))


@mutation
def step_to_the_other_direction(program: Program) -> Found:
    for where, instr, become in instructions(program):
        if isinstance(instr, Conversion) and instr.result.gradient is not None and instr.forward != instr.backward:
            yield where, become(replace(instr, forward=instr.backward, backward=instr.forward))


@mutation
def steps_in_another_order(program: Program) -> Found:
    for where, instr, direction, become in directions(program):
        steps = getattr(instr, direction)
        if len(steps) > 1:
            yield where, become(steps[::-1])


@mutation
def step_of_another_digit(program: Program) -> Found:
    for where, instr, direction, become in directions(program):
        steps = getattr(instr, direction)
        for k, step in enumerate(steps):
            for end in ("source", "target"):
                here = getattr(step, end, ())
                for n, one in enumerate(here if isinstance(here, tuple) else (here,)):
                    for cut in cuts(one):
                        other = put(here, n, cut) if isinstance(here, tuple) else cut
                        yield f"{where} {end} {cut}", become(put(steps, k, replace(step, **{end: other})))
            if isinstance(step, AllToAll):
                if len(step.axes) > 1:
                    turned = replace(step, source=step.source[::-1])
                    yield f"{where} axes swapped", become(put(steps, k, turned))
                yield (
                    f"{where} ends swapped",
                    become(put(steps, k, replace(step, source=step.target, target=step.source))),
                )


@mutation
def step_of_another_size(program: Program) -> Found:
    for where, instr, direction, become in directions(program):
        steps = getattr(instr, direction)
        for k, step in enumerate(steps):
            yield f"{where} {step}", become(put(steps, k, replace(step, elements=step.elements * 2)))


@mutation
def reshard_dropped(program: Program) -> Found:
    """Its readers read the value as it was before."""
    for function in program.functions:
        for instr in function.body():
            if isinstance(instr, Conversion):
                old, new = instr.result.name, instr.source
                sections = tuple(
                    replace(s, body=tuple(_renamed(i, old, new) for i in s.body if i is not instr))
                    for s in function.sections
                )
                outputs = tuple(replace(o, name=new) if o.name == old else o for o in function.outputs)
                changed = replace(function, sections=sections, outputs=outputs)
                yield f"{function.name} {title(instr)}", with_function(program, changed)


def _renamed(instr: Instr, old: Name, new: Name) -> Instr:
    if isinstance(instr, OpPart):
        return replace(instr, reads=tuple(new if r == old else r for r in instr.reads))
    return replace(instr, source=new) if instr.source == old else instr


@mutation
def instruction_moved_behind_its_reader(program: Program) -> Found:
    for function in program.functions:
        for s, section in enumerate(function.sections):
            for k in range(len(section.body) - 1):
                first, then = section.body[k : k + 2]
                made = {v.name for v in results_of(first)}
                if made.intersection(then.reads if isinstance(then, OpPart) else (then.source,)):
                    body = (*section.body[:k], then, first, *section.body[k + 2 :])
                    changed = replace(function, sections=put(function.sections, s, replace(section, body=body)))
                    yield f"{function.name} {title(first)}", with_function(program, changed)


@mutation
def overwritten(program: Program) -> Found:
    for where, instr, become in instructions(program):
        if isinstance(instr, Conversion) and not where.startswith("prologue"):
            for k in (0, 1):
                steps = (instr.forward, instr.backward)[k]
                if not instr.in_place[k] and steps:
                    flags = (True, instr.in_place[1]) if k == 0 else (instr.in_place[0], True)
                    yield f"{where} {'value' if k == 0 else 'gradient'}", become(replace(instr, in_place=flags))


@mutation
def gathered_again(program: Program) -> Found:
    """Backward takes steps again that are no gathers, or by half of a backward, or by a layer that is recomputed."""
    for function in program.functions:
        for s, section in enumerate(function.sections):
            for k, instr in enumerate(section.body):
                alone = function.backward is Backward.WHOLE and not section.recompute
                if isinstance(instr, Conversion) and not (alone and is_gathered(instr)):
                    changed = replace(section, body=put(section.body, k, replace(instr, again=True)))
                    sections = put(function.sections, s, changed)
                    wrong = with_function(program, replace(function, sections=sections))
                    yield f"{function.name} {title(instr)}", wrong


@mutation
def made_again(program: Program) -> Found:
    """A section makes results again that are none of it, or that both halves of a backward need, or is none that is
    recomputed."""
    for function in program.functions:
        for s, (section, leaving) in enumerate(zip(function.sections, function.leaving(), strict=True)):
            alone = function.backward is Backward.WHOLE and section.recompute
            for name in (n for n in section.names() if not alone or n not in leaving):
                sections = put(function.sections, s, replace(section, again=(name,)))
                yield f"{function.name} {name}", with_function(program, replace(function, sections=sections))


@mutation
def slice_of_another_digit(program: Program) -> Found:
    for where, instr, become in instructions(program):
        if isinstance(instr, Conversion):
            for step in (s for s in instr.forward if isinstance(s, Narrow) and s.in_time):
                for cut in cuts(step.target):
                    yield f"{where} {cut}", become(replace(instr, forward=(replace(step, target=cut),)))
                yield f"{where} index", become(replace(instr, forward=(replace(step, axes=("other",)),)))
                yield f"{where} axis", become(replace(instr, forward=(replace(step, in_time=False),)))


@mutation
def first_of_another_index(program: Program) -> Found:
    """Every part has the whole value, or the first part of something else."""
    for where, instr, become in instructions(program):
        if isinstance(instr, Conversion):
            for step in (s for s in instr.forward if isinstance(s, KeepFirst) and s.in_time):
                yield f"{where} index", become(replace(instr, forward=(replace(step, axes=("other",)),)))
                yield f"{where} axis", become(replace(instr, forward=(replace(step, in_time=False),)))
                yield f"{where} every part", become(replace(instr, forward=()))
