"""Finds the layers of a model: its repeated modules (`h.3`, `layers.0.blocks.1`)."""

import re

from ssdsl.model.graph import Graph


def layer_paths(graph: Graph) -> frozenset[str]:
    """The paths of repeated modules: numbered modules with named modules inside."""
    found = set[str]()
    for path in {operator.path for operator in graph.operators}:
        parts = path.split(".")
        for at, part in enumerate(parts[:-1]):
            if part.isdigit() and not parts[at + 1].isdigit():
                found.add(".".join(parts[: at + 1]))
    return frozenset(found)


def layer_of(path: str, layers: frozenset[str]) -> str:
    """The innermost repeated module around a module path, or the empty path."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        if (prefix := ".".join(parts[:end])) in layers:
            return prefix
    return ""


def layers_by_path(graph: Graph) -> dict[str, str]:
    """The layer of each module that calls operators, by its path."""
    layers = layer_paths(graph)
    return {path: layer_of(path, layers) for path in {operator.path for operator in graph.operators}}


def module_of(path: str) -> str:
    """The path of a module, given that of one of its calls: without the numbers of later calls.

    >>> module_of("trunk#2.0")
    'trunk.0'
    """
    return re.sub(r"#\d+", "", path)
