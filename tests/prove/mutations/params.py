"""What goes wrong with weights: their layouts, flat parameters, and how gradients are completed."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

from ssdsl.ir.comm import AllGather, AllReduce, Narrow, ReduceScatter
from ssdsl.ir.layout import REPLICATE, Cut, Shard
from ssdsl.ir.param import (
    CompletionStep,
    FlatParam,
    SumTiedGrads,
)
from ssdsl.ir.program import Program
from ssdsl.lower.params.flatten_params import completion_of
from ssdsl.plan.plan import State
from ssdsl.plan.regions import Digit
from ssdsl.record import replace
from tests.prove.mutations.mutant import Found, mutation, put


@mutation
def param_partial(program: Program) -> Found:
    for k, param in enumerate(program.params):
        if not param.trained:
            continue
        for axis, _ in param.submesh.axes:
            partial = tuple(a for a in param.partial if a != axis) if axis in param.partial else (*param.partial, axis)
            yield (
                f"{param.weight} {axis}",
                replace(program, params=put(program.params, k, replace(param, partial=partial))),
            )


@mutation
def param_layout(program: Program) -> Found:
    for k, param in enumerate(program.params):
        for at, place in enumerate(param.layout.places):
            other = REPLICATE if isinstance(place, Shard) else Shard(0, Digit(param.submesh.axes[at][1]))
            changed = replace(param, layout=param.layout.replacing(at, other))
            yield f"{param.weight} {at}", replace(program, params=put(program.params, k, changed))


@mutation
def param_of_another_part(program: Program) -> Found:
    """Other digits of the same axis: what a recipe makes, or a checkpoint gives, is then another part."""
    for k, param in enumerate(program.params):
        for at, place in enumerate(param.layout.places):
            if isinstance(place, Shard):
                for other in (replace(place, digit=place.digit.scaled(2)), replace(place, factor=place.factor + 1)):
                    changed = replace(param, layout=param.layout.replacing(at, other))
                    yield f"{param.weight} {other}", replace(program, params=put(program.params, k, changed))


@mutation
def param_trained(program: Program) -> Found:
    for k, param in enumerate(program.params):
        yield param.weight, replace(program, params=put(program.params, k, replace(param, trained=not param.trained)))


@mutation
def param_dropped(program: Program) -> Found:
    for k, param in enumerate(program.params):
        yield param.weight, replace(program, params=put(program.params, k))


def _flats(program: Program) -> Iterator[tuple[str, FlatParam, Callable[..., Program]]]:
    for k, flat in enumerate(program.flats):
        yield f"flat {k}", flat, lambda *new, k=k: replace(program, flats=put(program.flats, k, *new))


def _steps(
    program: Program,
) -> Iterator[tuple[str, FlatParam, CompletionStep, Callable[..., Program]]]:
    """Each step of each completion, and the program with other steps in its place."""
    for where, flat, become in _flats(program):
        for when, steps in flat.completion._asdict().items():
            for k, step in enumerate(steps):
                yield (
                    f"{where} {when} {step}"[:90],
                    flat,
                    step,
                    lambda *new, flat=flat, become=become, when=when, steps=steps, k=k: become(
                        replace(flat, completion=flat.completion._replace(**{when: put(steps, k, *new)}))
                    ),
                )


@mutation
def completion_dropped(program: Program) -> Found:
    for where, _, _, become in _steps(program):
        yield where, become()


@mutation
def completion_doubled(program: Program) -> Found:
    for where, _, step, become in _steps(program):
        yield where, become(step, step)


@mutation
def completion_added(program: Program) -> Found:
    for where, flat, become in _flats(program):
        for axis, _ in flat.submesh.axes:
            once = *flat.completion.once, AllReduce((axis,), flat.elements)
            yield f"{where} {axis}", become(replace(flat, completion=flat.completion._replace(once=once)))


@mutation
def completion_changed(program: Program) -> Found:
    for where, flat, step, become in _steps(program):
        if isinstance(step, SumTiedGrads):
            for j in range(len(step.submeshes)):
                yield f"{where} a home less", become(SumTiedGrads(put(step.submeshes, j)))
            continue
        others: list[Any] = [replace(step, axes=step.axes[1:])] if len(step.axes) > 1 else []
        others += [replace(step, axes=(a,)) for a, _ in flat.submesh.axes if (a,) != step.axes]
        others += [replace(step, elements=step.elements + 1), replace(step, elements=step.elements // 2)]
        cut = ReduceScatter if isinstance(step, Narrow) else Narrow
        others.append(
            cut(step.axes, step.elements, Cut(0, 1, math.prod(dict(flat.submesh.axes)[a] for a in step.axes)))
        )
        for other in others:
            yield f"{where} {other}", become(other)


@mutation
def completion_in_another_order(program: Program) -> Found:
    for where, flat, become in _flats(program):
        for when, steps in flat.completion._asdict().items():
            if len(steps) > 1:
                yield (
                    f"{where} {when}",
                    become(replace(flat, completion=flat.completion._replace(**{when: steps[::-1]}))),
                )


@mutation
def completion_at_another_time(program: Program) -> Found:
    """A step that cuts a gradient runs earlier or later than the shards of its state say."""
    for where, flat, become in _flats(program):
        steps = flat.completion._asdict()
        for when, other in itertools.permutations(steps, 2):
            if steps[when]:
                changed = flat.completion._replace(**{when: (), other: (*steps[other], *steps[when])})
                yield f"{where} {when} {other}", become(replace(flat, completion=changed))


@mutation
def reduction_shared_by_unlike(program: Program) -> Found:
    """Devices with other addends, or of other parts of the weights, reduce a part each as if they had the same."""
    for where, flat, step, become in _steps(program):
        param = next(p for p in program.params if p.submesh == flat.submesh and p.weight in flat.weights)
        for axis, _ in flat.submesh.axes if isinstance(step, AllReduce) else ():
            if axis in (*param.partial, *flat.sharded.optimizer) or axis not in param.copied:
                ways = Cut(0, 1, dict(flat.submesh.axes)[axis])
                reduced = replace(step, elements=step.elements // ways.count)
                ends = Narrow((axis,), step.elements, ways), AllGather((axis,), step.elements, ways)
                yield f"{where} {axis}", become(ends[0], reduced, ends[1])


@mutation
def flat_size(program: Program) -> Found:
    for where, flat, become in _flats(program):
        copies = math.prod(ways for _, ways in flat.submesh.axes)
        for elements in (flat.elements - copies, flat.elements + copies):
            yield f"{where} {elements}", become(replace(flat, elements=elements))


@mutation
def kept_otherwise(program: Program) -> Found:
    """Weights stay in parts that they never have, or whole while their gradients go in parts, or the other way."""
    for where, flat, become in _flats(program):
        if flat.kept is not None:
            outside = tuple(axis for axis, _ in flat.submesh.axes if axis not in flat.sharded.weights)
            for axes in {(), flat.sharded.weights, flat.sharded.weights[:1], outside[:1]}:
                if bool(axes) != bool(flat.kept.axes) or not {*axes} < {*flat.sharded.weights}:
                    yield f"{where} {axes}", become(replace(flat, kept=replace(flat.kept, axes=axes)))
            yield f"{where} none", become(replace(flat, kept=None))


@mutation
def border_moved(program: Program) -> Found:
    """A part of a gradient ends elsewhere than the portions say."""
    for where, _, step, become in _steps(program):
        if isinstance(step, ReduceScatter | Narrow) and (at := step.target.at) is not None:
            for k, (((start, end),), ((_, stop),)) in enumerate(itertools.pairwise(at)):
                moved = *at[:k], ((start, end - 1),), ((end - 1, stop),), *at[k + 2 :]
                yield f"{where} {k}", become(replace(step, target=replace(step.target, at=moved)))
            yield f"{where} equal", become(replace(step, target=replace(step.target, at=None)))


@mutation
def portions_changed(program: Program) -> Found:
    """Devices have other portions of the state than the plan says, also where all else fits to it."""
    for where, flat, become in _flats(program):
        for k, (axis, portions) in enumerate(flat.sharded.portions):
            for other in (portions[::-1], (*portions[:-1], portions[-1] + 1), portions[:-1]):
                sharded = replace(flat.sharded, portions=put(flat.sharded.portions, k, (axis, other)))
                if sharded != flat.sharded:
                    yield f"{where} {other}", become(replace(flat, sharded=sharded))
                if len(other) == len(portions) and sum(other) == sum(portions) and other != portions:
                    partial = next(
                        p.partial for p in program.params if p.submesh == flat.submesh and p.weight == flat.weights[0]
                    )
                    about = partial, sharded, flat.elements, dict(flat.submesh.axes)
                    fitting = completion_of(*about, flat.completion.tied, stays_whole=flat.stays_whole)
                    yield f"{where} all {other}", become(replace(flat, sharded=sharded, completion=fitting))
            yield f"{where} equal", become(replace(flat, sharded=replace(flat.sharded, portions=())))


@mutation
def home_changed(program: Program) -> Found:
    """The optimizer steps on a weight nowhere, on a part of it, or where no device is."""
    for where, flat, become in _flats(program):
        for k, home in enumerate(flat.homes):
            if home is not None:
                fewer = replace(home, axes=home.axes[1:], at=home.at[1:])
                outside = replace(home, at=(dict(flat.submesh.axes)[home.axes[0]], *home.at[1:]))
                for other in (None, fewer, outside):
                    yield f"{where} {flat.weights[k]} {other}", become(replace(flat, homes=put(flat.homes, k, other)))


@mutation
def flat_weights(program: Program) -> Found:
    for where, flat, become in _flats(program):
        for k in (0, len(flat.weights) - 1):
            yield f"{where} - {flat.weights[k]}", become(replace(flat, weights=put(flat.weights, k)))
        yield f"{where} twice", become(replace(flat, weights=(*flat.weights, flat.weights[0])))


@mutation
def flat_sharded(program: Program) -> Found:
    for where, flat, become in _flats(program):
        for state in State:
            axes = flat.sharded.of(state)
            others = [(), *(((*axes, a) if a not in axes else (a,)) for a, _ in flat.submesh.axes)]
            for other in others:
                if other != axes:
                    sharded = replace(flat.sharded, **{state.value: other})
                    yield f"{where} {state} over {other}", become(replace(flat, sharded=sharded))
