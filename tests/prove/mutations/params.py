"""What goes wrong with weights: their layouts, flat parameters, and how gradients are completed."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ssdsl.ir.layout import REPLICATE, Shard
from ssdsl.ir.param import AllReduceGrads, ChunkGrads, FlatParam, GatherGrads, ReduceScatterGrads, SumTiedGrads, Zero
from ssdsl.ir.program import Program
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
            other = REPLICATE if isinstance(place, Shard) else Shard(0, 1, param.submesh.axes[at][1])
            changed = replace(param, layout=param.layout.replacing(at, other))
            yield f"{param.weight} {at}", replace(program, params=put(program.params, k, changed))


@mutation
def param_of_another_part(program: Program) -> Found:
    """Other digits of the same axis: what a recipe makes, or a checkpoint gives, is then another part."""
    for k, param in enumerate(program.params):
        for at, place in enumerate(param.layout.places):
            if isinstance(place, Shard):
                for other in (replace(place, stride=2 * place.stride), replace(place, factor=place.factor + 1)):
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


@mutation
def completion_dropped(program: Program) -> Found:
    for where, flat, become in _flats(program):
        for k, step in enumerate(flat.completion):
            yield f"{where} {step}"[:90], become(replace(flat, completion=put(flat.completion, k)))


@mutation
def completion_doubled(program: Program) -> Found:
    for where, flat, become in _flats(program):
        for k, step in enumerate(flat.completion):
            yield f"{where} {step}"[:90], become(replace(flat, completion=put(flat.completion, k, step, step)))


@mutation
def completion_added(program: Program) -> Found:
    for where, flat, become in _flats(program):
        for axis, _ in flat.submesh.axes:
            yield f"{where} {axis}", become(replace(flat, completion=(*flat.completion, AllReduceGrads((axis,)))))


@mutation
def completion_changed(program: Program) -> Found:
    for where, flat, become in _flats(program):
        for k, step in enumerate(flat.completion):
            if isinstance(step, SumTiedGrads):
                for j in range(len(step.submeshes)):
                    fewer = SumTiedGrads(put(step.submeshes, j))
                    yield f"{where} a home less", become(replace(flat, completion=put(flat.completion, k, fewer)))
                continue
            others: list[Any] = [type(step)(step.axes[1:])] if len(step.axes) > 1 else []
            others += [type(step)((a,)) for a, _ in flat.submesh.axes if (a,) != step.axes]
            others += [ChunkGrads(step.axes)] if not isinstance(step, ChunkGrads) else [ReduceScatterGrads(step.axes)]
            for other in others:
                yield f"{where} {other}", become(replace(flat, completion=put(flat.completion, k, other)))


@mutation
def completion_in_another_order(program: Program) -> Found:
    for where, flat, become in _flats(program):
        if len(flat.completion) > 1:
            yield where, become(replace(flat, completion=flat.completion[::-1]))


@mutation
def reduction_shared_by_unlike(program: Program) -> Found:
    """Devices with other addends, or of other parts of the weights, reduce a part each as if they had the same."""
    for where, flat, become in _flats(program):
        param = next(p for p in program.params if p.submesh == flat.submesh and p.weight in flat.weights)
        for k, step in enumerate(flat.completion):
            for axis, _ in flat.submesh.axes if isinstance(step, AllReduceGrads) else ():
                if axis in (*param.partial, *flat.shard_axes) or axis not in param.copied:
                    shared = ChunkGrads((axis,)), step, GatherGrads((axis,))
                    yield f"{where} {axis}", become(replace(flat, completion=put(flat.completion, k, *shared)))


@mutation
def flat_size(program: Program) -> Found:
    for where, flat, become in _flats(program):
        copies = math.prod(ways for _, ways in flat.submesh.axes)
        for elements in (flat.elements - copies, flat.elements + copies):
            yield f"{where} {elements}", become(replace(flat, elements=elements))


@mutation
def flat_weights(program: Program) -> Found:
    for where, flat, become in _flats(program):
        for k in (0, len(flat.weights) - 1):
            yield f"{where} - {flat.weights[k]}", become(replace(flat, weights=put(flat.weights, k)))
        yield f"{where} twice", become(replace(flat, weights=(*flat.weights, flat.weights[0])))


@mutation
def flat_zero(program: Program) -> Found:
    for where, flat, become in _flats(program):
        for zero in Zero:
            if zero is not flat.zero:
                yield f"{where} {zero.value}", become(replace(flat, zero=zero))
        for axis, _ in flat.submesh.axes:
            axes = (
                tuple(a for a in flat.shard_axes if a != axis) if axis in flat.shard_axes else (*flat.shard_axes, axis)
            )
            yield f"{where} over {axes}", become(replace(flat, shard_axes=axes))
