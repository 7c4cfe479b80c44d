"""What a step's code tells an object that follows a rank through a step, such as a clock."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch.autograd.graph import GradientEdge


class Tracer(Protocol):
    """Follows one rank through a step."""

    def task(self, what: str, number: int, at: Mapping[str, int]) -> AbstractContextManager[None]:
        """A context for a task of a step: a phase of a block ("F", "A", "B", "D", "W"), at some indices in time."""
        ...

    def follow(self, roots: Iterable[torch.Tensor | GradientEdge]) -> None:
        """Follows the backward of these roots, which begins next in this thread."""
        ...

    def compiled(self) -> AbstractContextManager[None] | None:
        """A context for a compiled run, which is followed as a whole; None if it must be called operator by
        operator."""
        ...

    def aside(self, place: Any) -> AbstractContextManager[None]:
        """A context for work that belongs to another place than the running line or node."""
        ...


def nodes_behind(roots: Iterable[torch.Tensor | GradientEdge]) -> Iterable[Any]:
    """All autograd nodes that a backward of these roots may run, each once."""
    nodes = [root.node if isinstance(root, GradientEdge) else root.grad_fn for root in roots]
    seen = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        nodes += [following for following, _ in node.next_functions]
