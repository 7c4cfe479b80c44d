"""Joins the module paths of repeated layers: `h.0.attn`, `h.1.attn` and `h.2.attn` are `h.{0-2}.attn`."""

from collections.abc import Iterable

from ssdsl.plan.regions import ranges


def merged(paths: Iterable[str]) -> str:
    """Paths that differ only in numbers, and have equally many words, as one path with the numbers that occur."""
    split = [path.split(".") for path in dict.fromkeys(paths)]
    return ".".join(_part([parts[i] for parts in split]) for i in range(len(split[0])))


def _part(words: list[str]) -> str:
    words = list(dict.fromkeys(words))
    return words[0] if len(words) == 1 else "{" + ",".join(ranges(map(int, words))) + "}"
