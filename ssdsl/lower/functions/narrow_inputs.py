"""Inputs enter as parts: where all that reads an input on a device cuts it alike, the device is given the part alone.

A prologue begins with whole inputs and narrows them. What all of its narrowings have in common moves to the input
itself; the rest is narrowed as before. The prologues of one role begin with the same part of an input.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ssdsl.ir.function import Function, Instr, Op, Prologue, Reshard, reads_of
from ssdsl.ir.layout import REPLICATE, Layout, Shape, Shard, Submesh
from ssdsl.ir.value import Name, Type, Var
from ssdsl.lower.conversions.reshard import reshard
from ssdsl.lower.lowering import Lowering
from ssdsl.lower.operators.operand_types import local_sizes
from ssdsl.model.graph import Origin

Part = frozenset[tuple[str, Shard]]  # the digits that a device has, each by the axis that it follows
Renamed = dict[Name, Name]


def narrow_inputs(lowering: Lowering) -> Lowering:
    """Replaces the prologues by those that are given parts, and the names under which functions read these."""
    parts = _parts(lowering)
    prologues, renamed = [], dict[Submesh, Renamed]()
    for prologue in lowering.prologues:
        narrowed, renamed[prologue.submesh] = _narrowed(lowering, prologue, parts)
        prologues.append(narrowed)
    functions = tuple(_reading(f, renamed.get(f.submesh, {})) for f in lowering.functions)
    return replace(lowering, prologues=tuple(prologues), functions=functions)


# -- which part --------------------------------------------------------------------------------------------------------


def _parts(lowering: Lowering) -> dict[tuple[str, Submesh], Part]:
    """The part of an input that a prologue is given: what all of its readers have in common, here and in the other
    prologues of the same devices."""
    needs: dict[str, dict[Submesh, Part]] = {v.name: {} for v in lowering.graph.of(Origin.INPUT)}
    for prologue in lowering.prologues:
        for var in prologue.given:
            if var.name.value in needs:
                needs[var.name.value][prologue.submesh] = _common(_needs(prologue, var.name))
    return {
        (value, submesh): _common(by_submesh[s] for s in group)
        for value, by_submesh in needs.items()
        for group in _sharing(by_submesh)
        for submesh in group
    }


def _needs(prologue: Prologue, name: Name) -> Iterator[Part]:
    """What each reader of a value needs of it."""
    axes = prologue.submesh.axes
    for instr in prologue.body:
        if name in reads_of(instr):
            yield _part(instr.result.type.layout, axes) if isinstance(instr, Reshard) else Part()
    if name in prologue.results:
        yield Part()


def _part(layout: Layout, axes: tuple[tuple[str, int], ...]) -> Part:
    places = zip(axes, layout.places, strict=True)
    return Part((axis, place) for (axis, _), place in places if isinstance(place, Shard))


def _common(parts: Iterable[Part]) -> Part:
    first, *others = parts
    return first.intersection(*others)


def _sharing(submeshes: Iterable[Submesh]) -> list[list[Submesh]]:
    """Submeshes in groups: those that share devices, with each other or with another of the group, are together."""
    groups: list[list[Submesh]] = []
    for submesh in submeshes:
        joined = [g for g in groups if any(_meet(submesh, other) for other in g)]
        groups = [g for g in groups if g not in joined] + [[*(s for g in joined for s in g), submesh]]
    return groups


def _meet(a: Submesh, b: Submesh) -> bool:
    """Whether two submeshes share devices."""
    here = dict(a.fixed)
    return a.mesh == b.mesh and all(here.get(axis, at) == at for axis, at in b.fixed)


# -- what becomes of the prologue --------------------------------------------------------------------------------------


def _narrowed(
    lowering: Lowering, prologue: Prologue, parts: dict[tuple[str, Submesh], Part]
) -> tuple[Prologue, Renamed]:
    """A prologue that is given parts; a conversion to the very part is none any more, and its result is the input."""
    submesh = prologue.submesh
    given = {v.name: _given(lowering, v, submesh, parts.get((v.name.value, submesh), Part())) for v in prologue.given}
    renamed: Renamed = {}
    body: list[Instr] = []
    for instr in prologue.body:
        match instr:
            case Reshard() if instr.source in given:
                before, after = given[instr.source].type.layout, instr.result.type.layout
                if before == after:
                    renamed[instr.result.name] = instr.source
                else:
                    value = lowering.graph.values[instr.source.value]
                    shape = Shape(value.sizes)
                    steps = reshard(before, after, shape, submesh.axes, value.itemsize, lowering.links(submesh))
                    body.append(replace(instr, forward=steps))
            case Op():
                body.append(replace(instr, reads=tuple(renamed.get(r, r) for r in instr.reads)))
            case _:
                body.append(instr)
    results = tuple(renamed.get(name, name) for name in prologue.results)
    return replace(prologue, given=tuple(given.values()), body=tuple(body), results=results), renamed


def _given(lowering: Lowering, var: Var, submesh: Submesh, part: Part) -> Var:
    digits = dict(part)
    type_ = Type(Layout(tuple(digits.get(axis, REPLICATE) for axis, _ in submesh.axes)))
    shape = Shape(lowering.graph.values[var.name.value].sizes)
    return replace(var, type=type_, shape=local_sizes(shape, type_, submesh.axes))


def _reading(function: Function, renamed: Renamed) -> Function:
    prepared = tuple(replace(p, source=renamed.get(p.source, p.source)) for p in function.prepared)
    return replace(function, prepared=prepared)
