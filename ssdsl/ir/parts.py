"""The parts of a value that each task reads."""

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache

from ssdsl.ir.comm import Exchange
from ssdsl.ir.function import Function, FunctionInput, Merge
from ssdsl.ir.program import At
from ssdsl.ir.value import TimeIndex


def coordinates(time: Sequence[TimeIndex]) -> Iterator[At]:
    """All coordinates of some indices in time."""
    return itertools.product(*(range(t.parts) for t in time))


def parts_read(given: FunctionInput, time: tuple[TimeIndex, ...]) -> tuple[tuple[At, At], ...]:
    """Pairs of coordinates in time: a part of the input's producer, and a part of its consumer that reads it."""
    return _pairs(given.time, given.merges, time)


def reads_of_tasks(function: Function) -> dict[At, list[tuple[FunctionInput, At]]]:
    """The parts of its inputs that each task of a function reads."""
    found: dict[At, list[tuple[FunctionInput, At]]] = {}
    for given in function.inputs:
        for part, at in parts_read(given, function.time):
            found.setdefault(at, []).append((given, part))
    return found


@lru_cache(maxsize=1024)
def _pairs(
    given: tuple[TimeIndex, ...], merges: tuple[Merge, ...], time: tuple[TimeIndex, ...]
) -> tuple[tuple[At, At], ...]:
    """`parts_read` for the indices of a producer (`given`) and of a consumer (`time`). Cached, as most inputs of a
    program have equal ones."""
    merged = {axis for m in merges for axis in m.axes}
    names = [t.name for t in time]
    regions = {axis: m.read_by for m in merges if isinstance(m, Exchange) for axis in m.axes}
    within = [(k, names.index(t.name), regions[t.name]) for k, t in enumerate(given) if t.name in regions]
    shared = [(k, names.index(t.name)) for k, t in enumerate(given) if t.name not in merged]
    groups: dict[At, list[At]] = {}
    for b in coordinates(time):
        groups.setdefault(tuple(b[k] for _, k in shared), []).append(b)
    return tuple(
        (a, b)
        for a in coordinates(given)
        for b in groups.get(tuple(a[k] for k, _ in shared), ())
        if all(a[k] in read_by[b[n]] for k, n, read_by in within)
    )
