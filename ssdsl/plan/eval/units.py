"""Repeated modules: the units in which a model is balanced and recomputed.

A module is repeated where its path has a segment that is a number: `transformer.h.3`, and `h.3#1`, its second call.
"""

from itertools import groupby

from ssdsl.plan.model_index import ModelIndex


def repeated_units(model: ModelIndex, operators: frozenset[str], level: int = 1) -> list[tuple[str, list[str]]]:
    """Units of COMPUTE operators in the order of the graph, each with its module path; "" for a run of other operators.

    A unit has the operators beneath a path up to its last numbered segment, counting the first `level` numbered ones:
    `transformer.h.3`. Operators between such modules form runs of their own. If other operators interrupt a unit, they
    become part of it.
    """
    units: list[tuple[str, list[str]]] = []
    place: dict[str, int] = {}
    modules = {path: module_of(path, level) for path in model.paths}
    for op in model.ordered(model.only_compute(operators)):
        name = modules[op.path]
        if name in place and name:
            at = place[name]
            for other, names in units[at + 1 :]:
                units[at][1].extend(names)
                place.pop(other, None)
            del units[at + 1 :]
            units[at][1].append(op.name)
        elif units and units[-1][0] == name:
            units[-1][1].append(op.name)
        else:
            place[name] = len(units)
            units.append((name, [op.name]))
    return units


def module_runs(model: ModelIndex, operators: frozenset[str]) -> list[tuple[str, list[str]]]:
    """Runs of COMPUTE operators of one module each, in the order of the graph: for models that repeat no module."""
    placed = model.ordered(model.only_compute(operators))
    return [(path, [op.name for op in run]) for path, run in groupby(placed, key=lambda op: op.path)]


def module_of(path: str, level: int) -> str:
    """The path up to its last numbered segment, counting the first `level` numbered ones; empty if it has none."""
    segments, end, left = path.split("."), 0, level
    for i, segment in enumerate(segments):
        if is_number(segment) and left:
            end, left = i + 1, left - 1
    return ".".join(segments[:end])


def deepest_level(model: ModelIndex, operators: frozenset[str]) -> int:
    """The largest number of numbered segments in a path."""
    paths = {model.operators[n].path for n in operators}
    return max((sum(map(is_number, path.split("."))) for path in paths), default=0)


def is_number(segment: str) -> bool:
    """Whether a segment of a path numbers a repeated module: `3`, and `3#1`."""
    return segment.partition("#")[0].isdigit()
