"""The names of a plan's text: where each occurs, and where it is bound. For definitions, references and colours.

Functions, loops and comprehensions have names of their own. Axes of meshes, indices of splits and dimensions are no
values: each kind is one namespace of the whole text, as for the language.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from ssdsl.lang import nodes
from ssdsl.record import Record
from ssdsl.text.source import Span


class NameKind(StrEnum):
    """What a name is of."""

    PARAM = "param"
    VALUE = "value"
    MESH = "mesh"
    FUNCTION = "function"
    ARGUMENT = "argument"
    INDEX = "index"
    DIMENSION = "dimension"


class Occurrence(Record):
    """A place in the text where a name stands. `bound` is where it gets its meaning: the same place for a name that a
    statement introduces; None for one that the language, the model or nothing gives a meaning."""

    name: str
    span: Span
    kind: NameKind
    bound: Span | None

    @property
    def is_binding(self) -> bool:
        return self.bound == self.span


Names = dict[str, tuple[Span, NameKind]]


def occurrences(script: nodes.Script) -> tuple[Occurrence, ...]:
    """All names of a text, in its order."""
    walk = _Walk(dict(_bindings(script.statements)))
    walk.statements(script.statements, walk.outer)
    indices = {o.name: o.span for o in reversed(walk.found) if o.kind is NameKind.INDEX and o.is_binding}
    dims = {o.name: o.span for o in reversed(walk.found) if o.kind is NameKind.DIMENSION and o.is_binding}
    first = {NameKind.INDEX: indices, NameKind.DIMENSION: dims}
    found = (
        Occurrence(o.name, o.span, o.kind, first[o.kind].get(o.name)) if o.kind in first else o for o in walk.found
    )
    return tuple(sorted(found, key=lambda o: o.span.start))


def at(found: Iterable[Occurrence], offset: int) -> Occurrence | None:
    """The name at a place of the text, or right in front of it."""
    return next((o for o in found if o.span.start <= offset <= o.span.end), None)


def same(found: Iterable[Occurrence], one: Occurrence) -> tuple[Occurrence, ...]:
    """All places of a name with the same meaning."""
    if one.bound is None:
        return tuple(o for o in found if o.name == one.name and o.kind is one.kind and o.bound is None)
    return tuple(o for o in found if o.bound == one.bound and o.kind is one.kind)


def _bindings(statements: Iterable[nodes.Statement]) -> Iterator[tuple[str, tuple[Span, NameKind]]]:
    """The names that statements bind where they stand; a function may use one that is bound below it."""
    for s in statements:
        match s:
            case nodes.ParamStatement(name):
                yield name.text, (name.span, NameKind.PARAM)
            case nodes.MeshStatement(name):
                yield name.text, (name.span, NameKind.MESH)
            case nodes.LetStatement(name, formals):
                yield name.text, (name.span, NameKind.VALUE if formals is None else NameKind.FUNCTION)
            case nodes.DefStatement(name):
                yield name.text, (name.span, NameKind.FUNCTION)
            case nodes.UseStatement(_, names):
                yield from ((word.text, (word.span, NameKind.FUNCTION)) for word in names)
            case nodes.ForStatement(_, body, True):
                yield from _bindings(body)
            case nodes.IfStatement(branches, other):
                yield from _bindings((*(one for branch in branches for one in branch.body), *other))
            case nodes.EitherStatement(branches):
                yield from _bindings(one for body in branches for one in body)


@dataclass(slots=True)
class _Walk:
    """Collects the occurrences of names, statement by statement."""

    outer: Names
    found: list[Occurrence] = field(default_factory=list)

    def statements(self, statements: Iterable[nodes.Statement], names: Names) -> None:
        for s in statements:
            self.statement(s, names)

    def statement(self, s: nodes.Statement, names: Names) -> None:
        match s:
            case nodes.DefStatement(name, formals, body):
                self.bind(name, NameKind.FUNCTION)
                inner = {**names, **self.arguments(formals), **dict(_bindings(body))}
                self.statements(body, inner)
            case nodes.LetStatement(name, formals, value):
                self.bind(name, NameKind.VALUE if formals is None else NameKind.FUNCTION)
                self.node(value, {**names, **self.arguments(formals or ())})
            case nodes.ForStatement(bindings, body):
                inner = self.turns(bindings, names)
                self.statements(body, {**inner, **dict(_bindings(body))})
            case nodes.ClockStatement(_, bindings, rows):
                inner = self.turns(bindings, names)
                for row in rows:
                    self.node(row, inner)
            case nodes.IfStatement(branches, other):
                for branch in branches:
                    self.node(branch.test, names)
                    self.statements(branch.body, names)
                self.statements(other, names)
            case nodes.EitherStatement(branches):
                for body in branches:
                    self.statements(body, names)
            case _:
                self.words(s)
                for child in s.parts:
                    for part in child if isinstance(child, tuple) else (child,):
                        self.node(part, names)

    def words(self, s: nodes.Statement) -> None:
        """The names of a statement that are no expressions."""
        match s:
            case nodes.ParamStatement(name):
                self.bind(name, NameKind.PARAM)
            case nodes.MeshStatement(name, axes):
                self.bind(name, NameKind.MESH)
                for axis in axes:
                    self.bind(axis.name, NameKind.INDEX)
            case nodes.UseStatement(_, names):
                for word in names:
                    self.bind(word, NameKind.FUNCTION)
            case nodes.DimStatement(name):
                self.bind(name, NameKind.DIMENSION)
            case nodes.SplitStatement(_, dim, cuts):
                self.add(dim, NameKind.DIMENSION, None)
                for cut in cuts:
                    self.bind(cut.name, NameKind.INDEX)
            case nodes.CompressStatement(dim=dim):
                self.add(dim, NameKind.DIMENSION, None)
            case nodes.KeepStatement(_, cut, through):
                self.add(through, NameKind.INDEX, None)
                for word in cut.axes if cut is not None else ():
                    self.add(word, NameKind.INDEX, None)

    def node(self, node: object, names: Names) -> None:
        """The names in an expression."""
        match node:
            case nodes.NameExpression(text):
                span, kind = names.get(text, (None, NameKind.VALUE))
                self.found.append(Occurrence(text, node.span, kind, span))
            case nodes.Comprehension(item, bindings):
                self.node(item, self.turns(bindings, names))
            case nodes.Pick(target, keys):
                self.node(target, names)
                for key in keys:
                    if isinstance(key, nodes.Keyed):
                        self.add(key.name, NameKind.INDEX, None)
                        self.node(key.value, names)
                    else:
                        self.node(key, names)
            case nodes.Keyed(_, value):
                self.node(value, names)
            case nodes.Node():
                for child in node.parts:
                    for part in child if isinstance(child, tuple) else (child,):
                        self.node(part, names)

    def turns(self, bindings: Iterable[nodes.Binding], names: Names) -> Names:
        """The names inside of a loop."""
        inner = dict(names)
        for binding in bindings:
            self.node(binding.values, inner)
            self.bind(binding.name, NameKind.ARGUMENT)
            inner[binding.name.text] = binding.name.span, NameKind.ARGUMENT
        return inner

    def arguments(self, formals: Iterable[nodes.Word]) -> Names:
        for word in formals:
            self.bind(word, NameKind.ARGUMENT)
        return {word.text: (word.span, NameKind.ARGUMENT) for word in formals}

    def bind(self, word: nodes.Word, kind: NameKind) -> None:
        self.add(word, kind, word.span)

    def add(self, word: nodes.Word, kind: NameKind, bound: Span | None) -> None:
        self.found.append(Occurrence(word.text, word.span, kind, bound))
