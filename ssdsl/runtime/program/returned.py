"""The structure of what a forward returns, by its leaves: tensors, and what is no tensor. It does not import torch.

A leaf is known by its path from the outside, and its output by the names on this path, joined by dots: the first
tensor of a tuple `hidden` is the output `hidden.0`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Key = str | int


@dataclass(frozen=True)
class Step:
    """A step into a container: a key or attribute of a "dict", or a position in a "tuple" or "list"."""

    kind: str
    key: str | int


@dataclass(frozen=True)
class Leaf:
    """What lies at the end of a path. `what` says what it is, if that is no tensor: "an int", "None"."""

    path: tuple[Step, ...]
    what: str = ""

    @property
    def name(self) -> str:
        """The name of the output."""
        return ".".join(str(step.key) for step in self.path)

    @property
    def is_tensor(self) -> bool:
        """Whether it is an output of the program."""
        return not self.what

    def is_in(self, name: str) -> bool:
        """Whether it is the output of this name, or lies in it.

        >>> Leaf((Step("dict", "hidden"), Step("tuple", 0))).is_in("hidden")
        True
        """
        return self.name == name or self.name.startswith(f"{name}.")


def rebuilt(leaves: Iterable[Leaf], values: Mapping[str, Any]) -> dict[Key, Any]:
    """What a forward returned, with these values of its outputs: a dictionary by keys, attributes or positions, in
    which tuples, lists and dictionaries are as the forward made them. What is no tensor is left out of dictionaries,
    and None in tuples.

    >>> pair = Leaf((Step("dict", "h"), Step("tuple", 0))), Leaf((Step("dict", "h"), Step("tuple", 1)), "None")
    >>> rebuilt(pair, {"h.0": 7})
    {'h': (7, None)}
    """
    found = {key: _joined(inside, 1, values) for key, inside in _by_key(leaves, 0).items()}
    return {key: value for key, value in found.items() if value is not None}


def part_of(leaves: Iterable[Leaf], name: str, values: Mapping[str, Any]) -> Any:
    """One output, or the container of this name with the outputs in it."""
    inside = [leaf for leaf in leaves if leaf.is_in(name)]
    depth = next(n for n in range(1, len(inside[0].path) + 1) if Leaf(inside[0].path[:n]).name == name)
    return _joined(inside, depth, values)


def _by_key(leaves: Iterable[Leaf], depth: int) -> dict[Key, list[Leaf]]:
    found: dict[Key, list[Leaf]] = {}
    for leaf in leaves:
        found.setdefault(leaf.path[depth].key, []).append(leaf)
    return found


def _joined(leaves: list[Leaf], depth: int, values: Mapping[str, Any]) -> Any:
    """The value of leaves with the same first `depth` steps."""
    first = leaves[0]
    if len(first.path) == depth:
        return values.get(first.name) if first.is_tensor else None
    parts = {key: _joined(inside, depth + 1, values) for key, inside in _by_key(leaves, depth).items()}
    match first.path[depth].kind:
        case "tuple":
            return tuple(parts.values())
        case "list":
            return [*parts.values()]
    return {key: part for key, part in parts.items() if part is not None}
