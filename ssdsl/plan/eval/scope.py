"""Scopes: names are bound once in each; an inner scope may bind a name again."""

from collections.abc import Iterator

from ssdsl.lang.nodes import Word
from ssdsl.plan.errors.names import NameTaken, UnknownName
from ssdsl.plan.values import Value
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Span


class Scope:
    """The names of a file, a function call or a turn of a loop, inside the scope `parent`.

    `places` are where names were bound. `broken` are names whose statement failed: using one raises an error without
    diagnostics, as the mistake has been reported. `free` are built-in words that a plan may bind anew: they are younger
    than the first plans.
    """

    __slots__ = ("broken", "free", "parent", "places", "values")

    def __init__(self, parent: "Scope | None" = None) -> None:
        self.parent = parent
        self.values: dict[str, Value] = {}
        self.places: dict[str, Span] = {}
        self.broken: set[str] = set()
        self.free: frozenset[str] = frozenset()

    def bind(self, word: Word, value: Value) -> None:
        """Binds a new name; raises PlanError if the name is taken."""
        name = word.text
        if name in self.values:
            raise PlanError(NameTaken(word.span, name, first=self.places.get(name)))
        self.check_free(word)
        self.values[name] = value
        self.places[name] = word.span

    def give_up(self, name: str) -> None:
        """Marks a name whose statement has failed."""
        if name not in self.values:
            self.broken.add(name)

    def inside(self, values: dict[str, Value]) -> "Scope":
        """A scope inside this one. Its names were checked when the function or loop began."""
        scope = Scope(self)
        scope.values = values
        return scope

    def check_free(self, *words: Word) -> None:
        """Raises PlanError for a word that every plan has, or for a word given twice."""
        seen: dict[str, Span] = {}
        for word in words:
            if word.text in seen:
                raise PlanError(NameTaken(word.span, word.text, first=seen[word.text]))
            if word.text in self.outermost.values and word.text not in self.outermost.free:
                raise PlanError(NameTaken(word.span, word.text, "a word that every plan has"))
            seen[word.text] = word.span

    def find(self, name: str, span: Span) -> Value:
        """The value of a name. Raises PlanError: without diagnostics for a name whose statement has failed."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            if name in scope.broken:
                raise PlanError()
            scope = scope.parent
        raise PlanError(UnknownName(span, name, tuple(self.names())))

    def names(self) -> Iterator[str]:
        """All names that have a meaning here, the innermost first."""
        scope: Scope | None = self
        while scope is not None:
            yield from (*scope.values, *scope.broken)
            scope = scope.parent

    @property
    def outermost(self) -> "Scope":
        """The scope of the words that every plan has."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope
