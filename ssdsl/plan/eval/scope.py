"""Names and what they are bound to: once in each scope, an inner one may use a name again."""

from collections.abc import Iterator
from typing import Any

from ssdsl.lang.nodes import Word
from ssdsl.lang.suggest import suggest
from ssdsl.plan.errors.names import NameTaken, UnknownName
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Span

BROKEN = object()  # the value of a name whose statement failed: what uses it fails in silence


class Scope:
    """The names of a file, a function call or a turn of a loop, inside of those of its parent."""

    __slots__ = ("parent", "places", "values")

    def __init__(self, parent: "Scope | None" = None) -> None:
        self.parent = parent
        self.values: dict[str, Any] = {}
        self.places: dict[str, Span] = {}

    def bind(self, word: Word, value: Any) -> None:
        """A new name; raises PlanError where it has a meaning already."""
        name = word.text
        if name in self.values and self.values[name] is not BROKEN:
            raise PlanError(NameTaken(word.span, name, self.places.get(name), ""))
        self.check_free(word)
        self.values[name] = value
        self.places[name] = word.span

    def inside(self, values: dict[str, Any]) -> "Scope":
        """A scope in this one, of names that were checked when the function or loop began."""
        scope = Scope(self)
        scope.values = values
        return scope

    def check_free(self, *words: Word) -> None:
        """Raises PlanError for a word that every plan has, or the same word twice."""
        seen: dict[str, Span] = {}
        for word in words:
            if word.text in seen:
                raise PlanError(NameTaken(word.span, word.text, seen[word.text], ""))
            if self._is_builtin(word.text):
                raise PlanError(NameTaken(word.span, word.text, None, f"`{word.text}` is a word that every plan has"))
            seen[word.text] = word.span

    def find(self, name: str, span: Span) -> Any:
        """What a name means here."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                value = scope.values[name]
                if value is BROKEN:
                    raise PlanError()
                return value
            scope = scope.parent
        raise PlanError(UnknownName(span, name, suggest(name, self.names())))

    def names(self) -> Iterator[str]:
        """All names that have a meaning here, the innermost first."""
        scope: Scope | None = self
        while scope is not None:
            yield from scope.values
            scope = scope.parent

    def _is_builtin(self, name: str) -> bool:
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return name in scope.values
