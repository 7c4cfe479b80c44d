"""Writes a section as a Python function, once for each kind: its weights have their names in the layer."""

from collections.abc import Callable, Hashable, Iterable
from functools import partial

from ssdsl.codegen.body import Body
from ssdsl.codegen.lifetimes import Lifetimes
from ssdsl.codegen.scope import FileScope, SectionText, WeightTexts
from ssdsl.ir.function import Function, Section, Write, reads_of
from ssdsl.ir.value import Name


def section_text(
    function: Function, number: int, scope: FileScope, leaving: Callable[[], list[frozenset[Name]]], ends: Lifetimes
) -> SectionText:
    """The text of a section of a function; adds the groups that it uses to the scope. `leaving` gives the values that
    each section makes for others."""
    known, section = scope.common.sections, function.sections[number]
    key = None if section.kind is None else _key(function, section, scope)
    if (text := known.get(key)) is not None:
        for axes in text.groups:
            scope.group(axes)
        return text
    text = _written(function, number, scope, leaving()[number], ends)
    if key is not None:
        known[key] = text
    return text


def _key(function: Function, section: Section, scope: FileScope) -> Hashable:
    """Everything that the text depends on: the kind, the mesh, which names groups, and the texts of weights."""
    weights = WeightTexts(scope.common, function, section.layer)
    words = tuple(map(weights.word, section.names()))
    written = tuple(weights.changed(i.buffer) for i in section.body if isinstance(i, Write))
    return section.kind, scope.role.submesh.mesh, words, written


def _written(
    function: Function, number: int, scope: FileScope, leaving: frozenset[Name], ends: Lifetimes
) -> SectionText:
    section = function.sections[number]
    groups: dict[tuple[str, ...], None] = {}

    def group(axes: tuple[str, ...]) -> str:
        groups[axes] = None
        return scope.group(axes)

    body = scope.body(function, section.layer, scope.words, group)
    write(body, section, leaving, partial(ends.inside, number))
    values = [n for n in body.made if n in leaving]
    lines = [
        f"({', '.join([*body.outside.values(), 'weights', 'prefix', *time_of(function)])}):",
        "    with weights.under(prefix) as w:",
        *(f"        {line}" for line in body.lines),
        f"        return {', '.join(body.made[n] for n in values) or '()'}",
    ]
    place = {name: k for k, name in enumerate(section.names())}
    numbers = {id(instr): k for k, instr in enumerate(section.body)}
    return SectionText(
        "\n".join(lines),
        tuple(place[n] for n in body.outside),
        tuple(place[n] for n in values),
        {line: numbers[id(instr)] for line, instr in body.stands.items()},
        tuple(groups),
    )


def time_of(function: Function) -> list[str]:
    """The arguments that tell a function its indices in time: `m`, and `n_m` if the parts are unequal."""
    return [t.name for t in function.time] + [f"n_{t.name}" for t in function.time if t.sizes]


def write(body: Body, section: Section, leaving: frozenset[Name], ended: Callable[[int], Iterable[Name]]) -> None:
    """Adds the lines of a section to a body; behind each but the last, names are deleted that `ended` there."""
    used = leaving | {n for instr in section.body for n in reads_of(instr)}
    for number, instr in enumerate(section.body, start=1):
        body.add(instr, used)
        if number < len(section.body):
            body.drop(n for n in ended(number - 1) if n in used)
