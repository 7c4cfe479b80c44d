"""Completion of a module path: the segments that may follow, with `*` where they are numbers."""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from ssdsl.plan.eval.units import is_number


def next_segments(paths: Iterable[str], typed: str) -> tuple[str, ...]:
    """The segments that may follow the last dot of a path. At the start of a path all segments, as paths may begin
    anywhere."""
    prefix = typed.split(".")[:-1]
    found: dict[str, None] = {}
    for segment in _behind(paths, prefix):
        if is_number(segment):
            found.setdefault("*")
        if prefix or not is_number(segment):
            found.setdefault(segment)
    return tuple(found) if prefix else (*(s for s in found if s != "*"), "*")


def _behind(paths: Iterable[str], prefix: list[str]) -> Iterator[str]:
    """The segments after each match of the prefix."""
    for path in paths:
        segments = path.split(".") if path else []
        for start in range(len(segments) - len(prefix)):
            at = start + len(prefix)
            if all(p == "**" or fnmatchcase(s, p) for s, p in zip(segments[start:at], prefix, strict=True)):
                yield segments[at]
