"""A dispatch mode, which sees each operator of torch, that knows the line of the role's file behind an operator.

An operator's place in forward is the line of the role's file that runs. In backward it is the line that made the
autograd node that runs: autograd numbers its nodes in the order of their creation, in each thread.
"""

import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.autograd.graph import GradientEdge
from torch.utils._python_dispatch import TorchDispatchMode

from ..ranks.tracer import nodes_behind
from ..ranks.world import World

OWN = "ssdsl_line"  # the key of a node's line in its metadata


@dataclass(frozen=True)
class CodeLine:
    """A line of the role's file, in a function that runs for a layer; `at` are indices in time."""

    number: int
    layer: str
    at: tuple[tuple[str, int], ...]


class LineMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The mode of one rank over a step, of which it is the tracer. `file` is its role's file; `at` are the indices in
    time of the task that runs."""

    def __init__(self, world: World, file: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.world, self.file = world, file
        self.at: dict[str, int] = {}
        self._lines: dict[tuple[int, int], CodeLine] = {}  # of nodes by thread and number

    # -- what the step tells (`Tracer`) ----------------------------------------------------------------------------

    @contextmanager
    def task(self, what: str, number: int, at: Mapping[str, int]) -> Iterator[None]:
        """A context for a task at some indices in time."""
        before, self.at = self.at, dict(at)
        yield
        self.at = before

    def follow(self, roots: Iterable[torch.Tensor | GradientEdge]) -> None:
        """Writes to the nodes of a backward which lines have made them."""
        for node in nodes_behind(roots):
            line = self._lines.get((threading.get_ident(), node._sequence_nr()))
            if line is not None:
                node.metadata.setdefault(OWN, line)

    def compiled(self) -> None:
        """None: each operator is looked at."""

    def aside(self, place: Any) -> AbstractContextManager[None]:
        """Nothing: each operator is looked at."""
        return nullcontext()

    # -- lines -----------------------------------------------------------------------------------------------------

    def running(self) -> CodeLine | None:
        """The line of the role's file behind the operator that `__torch_dispatch__` was called for: the line that runs,
        or that made the node that runs; None in the engine's own work."""
        line = self.line()
        if line is not None:  # which has made the last node of this thread, unless another line has
            self._lines.setdefault((threading.get_ident(), torch._C._autograd._get_sequence_nr() - 1), line)
        return line

    def line(self) -> CodeLine | None:
        """The line of the role's file that runs, or that made the node that runs."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        if frame is not None and frame.f_code.co_name != "step":
            return CodeLine(frame.f_lineno or 0, self.world.layer, tuple(self.at.items()))
        node: Any = torch._C._current_autograd_node()
        if node is None:
            return None
        # a graph inside another one's node is not followed (step/split_backward.py)
        own: CodeLine | None = node.metadata.get(OWN) or self._lines.get((threading.get_ident(), node._sequence_nr()))
        return own
