"""Suggests known words that are like an unknown one, and joins words for messages."""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 80  # no name that a person meant is longer; difflib is quadratic


def nearest(word: str, known: Iterable[str]) -> tuple[str, ...]:
    """Up to three known words like this one, the most similar first."""
    words = [w for w in dict.fromkeys(known) if len(w) <= LONGEST]
    exact = [w for w in words if w.lower() == word.lower()]
    return tuple(exact or get_close_matches(word[:LONGEST], words, n=3, cutoff=0.6))


def suggest(word: str, known: Iterable[str]) -> str:
    """ "did you mean `split`?", or nothing."""
    found = nearest(word, known)
    return f"did you mean {either(found)}?" if found else ""


def either(words: Iterable[str]) -> str:
    """`a`, `b` or `c`."""
    return joined([f"`{w}`" for w in words], "or")


def joined(words: list[str], last: str) -> str:
    """a, b `last` c."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + f" {last} {words[-1]}" if words else ""


def counted(count: int, word: str) -> str:
    """`1 operator`, `1,024 operators`."""
    return f"{count:,} {word if count == 1 else word + 's'}"


def listed(words: Iterable[str], most: int = 8) -> str:
    """`a`, `b` and 3 more."""
    all_ = [f"`{w}`" for w in words]
    return joined(all_, "and") if len(all_) <= most else ", ".join(all_[:most]) + f" and {len(all_) - most} more"
