"""Names and what they are bound to: once in each scope, an inner one may use a name again."""

from collections.abc import Iterator

from ssdsl.lang.nodes import Word
from ssdsl.plan.errors.names import NameTaken, UnknownName
from ssdsl.plan.eval.values import Value
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Span


class Scope:
    """The names of a file, a function call or a turn of a loop, inside of those of its parent.

    `places` are where names were bound. `broken` are the names whose statement failed: what uses one fails in silence,
    as its mistake has been reported. `free` are words that a plan may give another meaning: it has known no others.
    """

    __slots__ = ("broken", "free", "parent", "places", "values")

    def __init__(self, parent: "Scope | None" = None) -> None:
        self.parent = parent
        self.values: dict[str, Value] = {}
        self.places: dict[str, Span] = {}
        self.broken: set[str] = set()
        self.free: frozenset[str] = frozenset()

    def bind(self, word: Word, value: Value) -> None:
        """A new name; raises PlanError where it has a meaning already."""
        name = word.text
        if name in self.values:
            raise PlanError(NameTaken(word.span, name, first=self.places.get(name)))
        self.check_free(word)
        self.values[name] = value
        self.places[name] = word.span

    def give_up(self, name: str) -> None:
        """The statement that would have bound this name has failed."""
        if name not in self.values:
            self.broken.add(name)

    def inside(self, values: dict[str, Value]) -> "Scope":
        """A scope in this one, of names that were checked when the function or loop began."""
        scope = Scope(self)
        scope.values = values
        return scope

    def check_free(self, *words: Word) -> None:
        """Raises PlanError for a word that every plan has, or the same word twice."""
        seen: dict[str, Span] = {}
        for word in words:
            if word.text in seen:
                raise PlanError(NameTaken(word.span, word.text, first=seen[word.text]))
            if word.text in self.outermost.values and word.text not in self.outermost.free:
                raise PlanError(NameTaken(word.span, word.text, "a word that every plan has"))
            seen[word.text] = word.span

    def find(self, name: str, span: Span) -> Value:
        """What a name means here; raises PlanError, an empty one for a name whose statement has failed."""
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
