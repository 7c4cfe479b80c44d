"""Writes words and tuples of words as Python."""

import json
from collections.abc import Sequence


def quoted(word: str) -> str:
    """A word in double quotes."""
    return json.dumps(word)


def quoted_tuple(words: Sequence[str]) -> str:
    """A tuple of words: `("a", "b")`, `("a",)`."""
    return f"({', '.join(map(quoted, words))}{',' if len(words) == 1 else ''})"
