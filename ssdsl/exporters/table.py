"""A table of a pipeline: what each rank does, in order.

An action is written as in PyTorch's tables: `2F1` is stage 2, forward, micro-batch 1; `B` is a whole backward, `I` and
`W` are its halves, the gradients of inputs and of weights (`torch.distributed.pipelining.schedules`).
"""

from enum import StrEnum
from typing import NamedTuple

from ssdsl.record import Record


class ActionKind(StrEnum):
    """What an action computes."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUTS = "I"
    WEIGHTS = "W"


class PipeAction(NamedTuple):
    """What a rank does with a micro-batch at a stage."""

    stage: int
    kind: ActionKind
    micro: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro}"

    @property
    def halves(self) -> "tuple[PipeAction, ...]":
        """A whole backward as its halves; any other action alone."""
        if self.kind is not ActionKind.BACKWARD:
            return (self,)
        return self._replace(kind=ActionKind.INPUTS), self._replace(kind=ActionKind.WEIGHTS)


Row = tuple[PipeAction, ...]


class PipelineTable(Record):
    """The actions of each rank in order."""

    rows: tuple[Row, ...]

    @property
    def stages(self) -> int:
        """The number of stages."""
        return 1 + max(action.stage for row in self.rows for action in row)

    @property
    def micro(self) -> int:
        """The number of micro-batches."""
        return 1 + max(action.micro for row in self.rows for action in row)

    @property
    def rank(self) -> tuple[int, ...]:
        """The rank of each stage."""
        found = {action.stage: rank for rank, row in enumerate(self.rows) for action in row}
        return tuple(found[stage] for stage in range(self.stages))

    @property
    def in_halves(self) -> bool:
        """Whether some backward is in halves."""
        return any(action.kind in (ActionKind.INPUTS, ActionKind.WEIGHTS) for row in self.rows for action in row)

    @property
    def halved(self) -> "PipelineTable":
        """The same order with each backward in halves."""
        return PipelineTable(tuple(tuple(half for action in row for half in action.halves) for row in self.rows))
