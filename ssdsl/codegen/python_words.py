"""Python words: identifiers made from the names of the graph, and words in quotes."""

import json
import keyword
import re
from collections.abc import Iterable, Sequence


class Identifiers:
    """Gives every key one identifier, made from a word, different from all the others."""

    def __init__(self, taken: tuple[str, ...] = ()) -> None:
        self._of: dict[str, str] = {}
        self._taken = set(taken) | set(keyword.kwlist)

    def name(self, key: str, word: str | None = None) -> str:
        """The identifier of a key; a new one is the word (the key itself by default), numbered if it is taken."""
        if key not in self._of:
            base = re.sub(r"\W+", "_", word if word is not None else key).strip("_") or "x"
            base = f"_{base}" if base[0].isdigit() else base
            self._of[key] = self.unused(base)
        return self._of[key]

    def unused(self, base: str) -> str:
        """A new identifier, in use from now on: the base, numbered if need be."""
        name, count = base, 1
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name

    def copy(self) -> "Identifiers":
        """Identifiers of an inner scope, different from all of these."""
        return Identifiers(tuple(self._taken))


def quoted(word: str) -> str:
    """A word in double quotes."""
    return json.dumps(word)


def quoted_tuple(words: Sequence[str]) -> str:
    """A tuple of words: `("a", "b")`, `("a",)`."""
    return tuple_of(map(quoted, words))


def tuple_of(items: Iterable[str]) -> str:
    """A tuple of expressions: `(a, b)`, `(a,)`."""
    inside = list(items)
    return f"({', '.join(inside)}{',' if len(inside) == 1 else ''})"
