"""Module paths, and the patterns that select them."""

import re
from collections.abc import Iterable, Sequence

from ssdsl.lang.suggest import nearest
from ssdsl.model.graph import ROOT
from ssdsl.plan.regions import ranges

CALL = re.compile(r"#\d+$")
RANGES = re.compile(r"\{(\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*)\}", re.ASCII)
BRACKETS = re.compile(r"\[(\d+)\]", re.ASCII)
MOST = 4096  # numbers in a range


def match_paths(paths: dict[str, frozenset[str]], pattern: str) -> tuple[frozenset[str], ...]:
    """The operators beneath each module that a pattern names, in the order of the graph.

    A pattern begins at the root or, if nothing matches there, at any segment: "h.*" finds "transformer.h.0". With a dot
    at the end it means only the operators that the module calls itself, not those of modules inside it: "h.*.", and "."
    for the root.
    """
    if pattern == ROOT:
        return (paths[""],) if "" in paths else ()
    if pattern.endswith("."):
        return _match_own(paths, pattern[:-1])
    segments = _segments(pattern)
    if not segments:
        return (frozenset().union(*paths.values()),)
    if "" in segments:
        return ()
    return tuple(frozenset().union(*(paths[p] for p in unit)) for unit in _beneath(paths, segments).values())


def numbered_paths(paths: Iterable[str], pattern: str, which: Sequence[int]) -> str:
    """A pattern of some of the modules that another one names by a `*` for their numbers: `h.{0-3}` of `h.*`; empty if
    it has not one such segment."""
    segments = _segments(pattern)
    units = [*_beneath(paths, segments)]
    if segments.count("*") != 1 or "**" in segments or any(number >= len(units) for number in which):
        return ""
    behind = len(segments) - segments.index("*")
    found = [units[number].split(".")[-behind] for number in which]
    if not all(number.isdecimal() for number in found):
        return ""
    words = found[0] if len(found) == 1 else "{" + ",".join(ranges(map(int, found))) + "}"
    return ".".join(words if segment == "*" else segment for segment in segments)


def _beneath(paths: Iterable[str], segments: list[str]) -> dict[str, list[str]]:
    """The paths beneath each module that the segments name, by its own."""
    for start in ([], ["**"]):
        compiled = re.compile(_expression([*start, *segments]))
        units: dict[str, list[str]] = {}
        for path in paths:
            if found := compiled.match(path):
                units.setdefault(found[0], []).append(path)
        if units:
            return units
    return {}


def _match_own(paths: dict[str, frozenset[str]], pattern: str) -> tuple[frozenset[str], ...]:
    """The operators that the modules of a pattern call themselves, without those of modules inside them."""
    found = match_names(paths, pattern)
    return tuple(paths[path] for path in paths if path in found)


def match_names(names: Iterable[str], pattern: str, anywhere: bool = False) -> frozenset[str]:
    """The names that a pattern matches as a whole: a name itself, or with `*` for segments. It begins at the root or,
    if nothing matches there, at any segment; with `anywhere` always at any segment."""
    known = dict.fromkeys(names)
    if pattern in known:
        return frozenset((pattern,))
    segments = _segments(pattern)
    if "" in segments or len(segments) < 2:
        return frozenset()
    for start in (["**"],) if anywhere else ([], ["**"]):
        compiled = re.compile(_expression([*start, *segments]))
        if found := frozenset(name for name in known if compiled.fullmatch(name)):
            return found
    return frozenset()


def _segments(pattern: str) -> list[str]:
    """The segments of a pattern. Neighbouring `**` become one; those at the ends say nothing and are dropped."""
    out: list[str] = []
    for segment in pattern.split("."):
        if segment != "**" or (out and out[-1] != "**"):
            out.append(segment)
    return out[:-1] if out and out[-1] == "**" else out


def _expression(segments: list[str]) -> str:
    """A regular expression for the segments. The text between two `**` is matched at its first place behind the last
    match and never tried again (atomic groups), so there is no backtracking."""
    pieces: list[list[str]] = [[]]
    for s in segments:
        if s == "**":
            pieces.append([])
        else:
            pieces[-1].append(_segment(s))
    end = r"(?=\.|$)"
    first, *rest = [r"\.".join(piece) + end if piece else "" for piece in pieces]
    return first + "".join(rf"(?>\.?(?:[^.]+\.)*?{piece})" for piece in rest)


def _segment(segment: str) -> str:
    """A regular expression for one segment. A name matches all calls of the module, `name#2` one call; the first is
    `name#0`."""
    name, _, number = segment.partition("#")
    if ranges := RANGES.fullmatch(name):
        return _numbers(ranges[1])
    first, *rest = [re.escape(piece) for piece in re.split(r"\*+", name)]
    glob = first + "".join(f"(?>[^.#]*?{piece})" for piece in rest[:-1]) + "".join(f"[^.#]*{p}" for p in rest[-1:])
    if not number:
        return glob + r"(?:#\d+)?"
    return glob + ("" if number == "0" else "#" + re.escape(number))


def _numbers(ranges: str) -> str:
    """A regular expression for one of several numbers, in the form in which views join them: `{0-2,5}`."""
    bounds = [piece.partition("-") for piece in ranges.split(",")]
    numbers = [n for low, _, high in bounds for n in range(int(low), min(int(high or low), int(low) + MOST) + 1)]
    return f"(?:{'|'.join(map(str, numbers))})" + r"(?:#\d+)?"


def near_paths(pattern: str, paths: Iterable[str]) -> tuple[str, ...]:
    """The patterns that one which names nothing is like, such as `h.*.mlp`: tries whole patterns first, then words.
    Numbers may be in brackets, as in Python; of numbers that no module has, those that there are are offered.

    >>> near_paths("h[1]", ["h.0", "h.1"]), near_paths("h.7", ["h.0", "h.1"])
    (('h.1',), ('h.{0-1}', 'h.1'))
    """
    known = dict.fromkeys(paths)
    pattern = BRACKETS.sub(r".\1", pattern.rstrip("."))
    if found := _with_numbers(pattern, known):
        return found
    prefixes: dict[str, None] = {}
    for path in known:
        parts = ["*" if p.isdigit() else p for p in CALL.sub("", path).split(".")]
        for i in range(len(parts)):
            for j in range(i + 1, len(parts) + 1):
                prefixes[".".join(parts[i:j])] = None
    starred = ".".join("*" if p.isdigit() else p for p in pattern.split("."))
    if close := nearest(starred, prefixes):
        numbers = [p for p in pattern.split(".") if p.isdigit()]
        return tuple(dict.fromkeys(_numbered(known, path, numbers) for path in close))
    words = (s for s in pattern.split(".") if s not in ("*", "**") and not s.isdigit())
    return tuple(w for s in words for w in _near_word(s, prefixes))


def _numbered(paths: Iterable[str], starred: str, numbers: Sequence[str]) -> str:
    """A path with these numbers in place of its stars, if there is such a module; else with the stars."""
    given = iter(numbers)
    found = ".".join(next(given, "*") if part == "*" else part for part in starred.split("."))
    return found if _beneath(paths, found.split(".")) else starred


def _with_numbers(pattern: str, paths: Iterable[str]) -> tuple[str, ...]:
    """The pattern, if it selects modules, with the numbers that there are in place of one that no module has, and with
    the nearest of them; else nothing."""
    words = pattern.split(".")
    near = [*words]
    for at, word in enumerate(words):
        if word.isdecimal() and not _beneath(paths, words[: at + 1]):
            last = {CALL.sub("", found).split(".")[-1] for found in _beneath(paths, [*words[:at], "*"])}
            there = {int(n) for n in last if n.isdecimal()}
            numbers = ",".join(ranges(there))
            words[at] = numbers if numbers.isdecimal() else f"{{{numbers}}}" if numbers else word
            near[at] = str(min(there, key=lambda n: (abs(n - int(word)), n))) if there else word
    found = (".".join(one) for one in (words, near) if "" not in one and _beneath(paths, one))
    return tuple(dict.fromkeys(found))


def starred(path: str) -> str:
    """The path with `*` for every number in it: paths of repeated layers become equal.

    A number at the end stays: `seq.0` and `seq.1` are two dimensions of one operator.
    """
    parts = path.split(".")
    return ".".join([*("*" if part.isdecimal() else part for part in parts[:-1]), parts[-1]])


def starred_module(path: str) -> str:
    """The path of a module with `*` for every number in it, the last as well: `layers.0` is like `layers.1`."""
    return starred(f"{path}.").removesuffix(".")


def top_modules(paths: Iterable[str]) -> tuple[str, ...]:
    """The modules of a model, at most two levels deep."""
    return tuple(dict.fromkeys(".".join(p.split(".")[:2]) for p in paths if p))


def _near_word(segment: str, prefixes: Iterable[str]) -> tuple[str, ...]:
    words = [p for p in prefixes if "." not in p]
    return () if segment in words else nearest(segment, words)[:1]
