"""Tells indices in time from those over devices, and warns of likely typing errors: `into tpp = 2` with an axis `tp`.

An index whose name is no axis of the mesh is in time. So a misspelt axis is no error, but cuts in time.
"""

from dataclasses import dataclass, field

from ssdsl.lang.suggest import nearest
from ssdsl.plan.errors.parts import NearAxis
from ssdsl.plan.facts import Facts
from ssdsl.plan.model_index import ModelIndex
from ssdsl.plan.plan import Index, Mesh
from ssdsl.text.source import Span

SHORTEST = 2  # letters: a name of one letter, such as `m`, would be similar to every short name


def meshes_of(facts: Facts, operator: str) -> list[Mesh]:
    """The mesh of an operator; all meshes if it has no place yet."""
    place = facts.of(operator).place
    return [*facts.meshes.values()] if place is None else [facts.meshes[place.mesh]]


def is_in_time(facts: Facts, operator: str, index: Index) -> bool:
    """Whether an index is in time: no mesh on which the operator is, or may be placed, has an axis of its name."""
    return not any(index.name in dict(mesh.axes) for mesh in meshes_of(facts, operator))


@dataclass(slots=True)
class _InTime:
    """An index in time of one statement, and the axes that its operators use and could use."""

    index: Index
    beside: set[str] = field(default_factory=set)  # names of their indices, and axes that their places fix
    free: dict[str, Mesh] = field(default_factory=dict)  # axes of more than one device, with their mesh


def near_axes(facts: Facts, model: ModelIndex) -> list[NearAxis]:
    """A warning for each index in time with a name similar to that of an axis which its operators leave unused."""
    found: dict[Span, _InTime] = {}
    for number, record in facts.distinct(model.numbers(model.compute)).items():
        name = model.graph.operators[number].name
        for index in record.indices:
            if facts.meshes and index.digit.parts > 1 and is_in_time(facts, name, index):
                _note(facts, name, found.setdefault(index.span, _InTime(index)))
    return [near for one in found.values() if (near := _near(one)) is not None]


def _note(facts: Facts, operator: str, one: _InTime) -> None:
    record = facts.of(operator)
    one.beside.update(i.name for i in record.indices)
    one.beside.update(axis for axis, _ in (record.place.fixed if record.place else ()))
    one.free |= {axis: mesh for mesh in meshes_of(facts, operator) for axis, size in mesh.axes if size > 1}


def _near(one: _InTime) -> NearAxis | None:
    free = {axis: mesh for axis, mesh in one.free.items() if axis not in one.beside and len(axis) >= SHORTEST}
    name = one.index.name
    like = nearest(name, free) if len(name) >= SHORTEST else ()
    if not like:
        return None
    mesh = free[like[0]]
    return NearAxis(one.index.span, name, one.index.digit.parts, mesh.name, like[0], dict(mesh.axes)[like[0]])
