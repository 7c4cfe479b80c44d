"""What goes wrong between functions: inputs, outputs, merges, what is gathered and prepared."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from ssdsl.ir.comm import AllGather, AllReduce, Transfer
from ssdsl.ir.function import (
    Backward,
    Function,
    GathersAhead,
    Merge,
    Prologue,
)
from ssdsl.ir.layout import PARTIAL, REPLICATE, Cut, Shape, Shard
from ssdsl.ir.program import Program
from ssdsl.ir.value import Name, local_sizes
from ssdsl.model.graph import Origin
from ssdsl.plan.regions import Digit
from ssdsl.record import replace
from tests.prove.mutations.mutant import (
    Found,
    cuts,
    mutation,
    parts_in,
    put,
    with_function,
)


def _inputs(program: Program) -> Iterator[tuple[str, Function, int, Callable[..., Program]]]:
    for function in program.functions:
        for k in range(len(function.inputs)):

            def become(*new: Any, f: Function = function, k: int = k) -> Program:
                return with_function(program, replace(f, inputs=put(f.inputs, k, *new)))

            yield f"{function.name} {function.inputs[k].var.name}", function, k, become


@mutation
def merge_dropped(program: Program) -> Found:
    for where, function, k, become in _inputs(program):
        given = function.inputs[k]
        for j, merge in enumerate(given.merges):
            yield f"{where} {merge}", become(replace(given, merges=put(given.merges, j)))


@mutation
def merge_changed(program: Program) -> Found:
    for where, function, k, become in _inputs(program):
        given = function.inputs[k]
        for j, merge in enumerate(given.merges):
            others: list[Merge] = [replace(merge, in_time=False), replace(merge, elements=merge.elements + 1)]
            if isinstance(merge, AllReduce):
                others.append(AllGather(merge.axes, merge.elements, Cut(0, 1, 2), in_time=True))
            else:
                others += [replace(merge, source=cut) for cut in cuts(merge.source)]
                others.append(AllReduce(merge.axes, merge.elements, in_time=True))
            for other in others:
                yield f"{where} {other}", become(replace(given, merges=put(given.merges, j, other)))
            fewer = tuple(replace(t, parts=t.parts - 1) if t.name in merge.axes else t for t in given.time)
            yield f"{where} fewer parts", become(replace(given, time=fewer))


@mutation
def merge_added(program: Program) -> Found:
    for where, function, k, become in _inputs(program):
        given = function.inputs[k]
        for index in given.time:
            elements = given.var.elements
            whole = AllGather((index.name,), elements * index.parts, Cut(0, 1, index.parts), in_time=True)
            for more in (AllReduce((index.name,), elements, in_time=True), whole):
                yield f"{where} {more.kind} {index.name}", become(replace(given, merges=(*given.merges, more)))


@mutation
def input_changed(program: Program) -> Found:
    for where, function, k, become in _inputs(program):
        given = function.inputs[k]
        yield f"{where} gradient flag", become(replace(given, gradient=not given.gradient))
        yield f"{where} slot", become(replace(given, slot=given.slot + "?"))
        yield f"{where} dropped", become()
        for other in program.functions:
            if other.number != given.producer:
                yield f"{where} of {other.name}", become(replace(given, producer=other.number))
                break


@mutation
def output_changed(program: Program) -> Found:
    for name, function, become in parts_in(program):
        for k, output in enumerate(function.outputs):
            read = any(i.slot == output.slot for f in program.functions for i in f.inputs)
            read |= any(isinstance(m, Transfer) and m.source_slot == output.slot for m in program.messages)
            if read or k == function.loss:
                yield f"{name} {output.slot} dropped", become(replace(function, outputs=put(function.outputs, k)))
            flipped = replace(output, gradient=not output.gradient)
            yield f"{name} {output.slot} gradient", become(replace(function, outputs=put(function.outputs, k, flipped)))
            late = replace(output, wgrad_only=not output.wgrad_only)
            yield f"{name} {output.slot} wgrad_only", become(replace(function, outputs=put(function.outputs, k, late)))


@mutation
def backward_of_another_kind(program: Program) -> Found:
    for name, function, become in parts_in(program):
        for kind in Backward:
            if kind is not function.backward:
                yield f"{name} {kind.value}", become(replace(function, backward=kind))


@mutation
def not_left_again(program: Program) -> Found:
    """What runs again reads a value that was dropped after the first forward."""
    for name, function, become in parts_in(program):
        for k, output in enumerate(function.outputs):
            if output.again:
                outputs = put(function.outputs, k, replace(output, again=False))
                yield f"{name} {output.name}", become(replace(function, outputs=outputs))


@mutation
def gather_of_weights_dropped(program: Program) -> Found:
    for name, function, become in parts_in(program):
        for s, section in enumerate(function.sections):
            for k in range(len(section.gathers)):
                changed = replace(section, gathers=put(section.gathers, k))
                yield f"{name} {section.layer}", become(replace(function, sections=put(function.sections, s, changed)))


@mutation
def updated_weights_read_before_they_arrive(program: Program) -> Found:
    """A section does not await what another device has updated, or one behind it does."""
    for name, function, become in parts_in(program):
        for s, section in enumerate(function.sections):
            for k, flat in enumerate(section.awaits):
                sections = put(function.sections, s, replace(section, awaits=put(section.awaits, k)))
                yield f"{name} {section.layer} {flat}", become(replace(function, sections=sections))
                if s + 1 < len(sections):
                    late = replace(sections[s + 1], awaits=(flat, *sections[s + 1].awaits))
                    yield (
                        f"{name} {section.layer} {flat} late",
                        become(replace(function, sections=put(sections, s + 1, late))),
                    )


@mutation
def gathered_ahead_for_nobody(program: Program) -> Found:
    """Forward gathers ahead in another order, or backward what it does not read then."""
    for name, function, become in parts_in(program):
        forward, backward = function.ahead.forward, function.ahead.backward
        for k in range(len(forward) - 1):
            swapped = (*forward[:k], forward[k + 1], forward[k], *forward[k + 2 :])
            yield f"{name} forward {k}", become(replace(function, ahead=GathersAhead(swapped, backward)))
        for k, group in enumerate(backward):
            twice = (*backward[:k], group * 8, *backward[k + 1 :])
            yield f"{name} backward {k}", become(replace(function, ahead=GathersAhead(forward, twice)))


@mutation
def prepared_of_another_name(program: Program) -> Found:
    for name, function, become in parts_in(program):
        for j, k in itertools.permutations(range(len(function.prepared)), 2):
            changed = replace(function.prepared[j], source=function.prepared[k].source)
            yield (
                f"{name} {function.prepared[j].source}",
                become(replace(function, prepared=put(function.prepared, j, changed))),
            )


@mutation
def input_of_another_part(program: Program) -> Found:
    """A prologue begins with another part of an input, or with all of it, and says so."""
    for p, prologue in enumerate(program.prologues):
        for k, var in enumerate(prologue.given):
            value = program.graph.values[var.name.value]
            for a, place in enumerate(var.type.layout.places if value.origin is Origin.INPUT else ()):
                factor = next((f for f, n in enumerate(Shape(value.sizes).factors) if n % 2 == 0), 0)
                for other in (REPLICATE, PARTIAL, Shard(factor, Digit(2))):
                    if other != place:
                        type_ = replace(var.type, layout=var.type.layout.replacing(a, other))
                        sizes = local_sizes(Shape(value.sizes), type_, prologue.submesh.axes)
                        changed = put(prologue.given, k, replace(var, type=type_, shape=sizes))
                        yield f"prologue {p} {var.name} {other}", _with_prologue(program, p, given=changed)


@mutation
def prepared_under_one_name(program: Program) -> Found:
    """Two prologues of the same devices keep different parts of a value under one name."""
    for (p, one), (_, other) in itertools.permutations(enumerate(program.prologues), 2):
        if not any(role.is_in(one.submesh) and role.is_in(other.submesh) for role in program.roles):
            continue
        for mine, theirs in itertools.product(one.results, other.results):
            if mine.value == theirs.value and mine != theirs and mine.version and theirs.version:
                yield f"prologue {p} {mine} as {theirs}", _renamed(program, p, mine, theirs)


def _with_prologue(program: Program, p: int, **changed: Any) -> Program:
    return replace(program, prologues=put(program.prologues, p, replace(program.prologues[p], **changed)))


def _renamed(program: Program, p: int, old: Name, new: Name) -> Program:
    prologue: Prologue = program.prologues[p]
    body = tuple(
        replace(i, result=replace(i.result, name=new)) if getattr(i, "result", None) and i.result.name == old else i
        for i in prologue.body
    )
    results = tuple(new if name == old else name for name in prologue.results)
    functions = tuple(
        replace(f, prepared=tuple(replace(q, source=new) if q.source == old else q for q in f.prepared))
        if f.submesh == prologue.submesh
        else f
        for f in program.functions
    )
    return replace(_with_prologue(program, p, body=body, results=results), functions=functions)
