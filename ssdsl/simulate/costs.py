"""What things cost: the interface between those who know (a roofline, a file of measured times) and the simulator."""

from dataclasses import dataclass, field
from typing import Protocol

from ssdsl.lower.layout import Submesh
from ssdsl.lower.schedule import Block, Role, Schedule, Transfer
from ssdsl.plan.plan import Phase


@dataclass(frozen=True, slots=True)
class Message:
    """Communication of one device: `calls` of a kind, of `size_bytes` together, over links of a level."""

    kind: str
    level: str
    calls: int
    size_bytes: int
    ranks: int  # devices that take part


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that a task computes, and waits for its own collectives."""

    compute_s: float = 0.0
    communication_s: float = 0.0
    messages: tuple[Message, ...] = ()

    @property
    def time_s(self) -> float:
        return self.compute_s + self.communication_s


@dataclass(frozen=True, slots=True)
class Tail:
    """What a role does behind its last task: completes gradients and steps the optimizer."""

    reduce: Cost = field(default_factory=Cost)
    optimizer: Cost = field(default_factory=Cost)


class Costs(Protocol):
    """Times in seconds. `schedule` and the cluster are the knower's business."""

    def task(self, block: Block, phase: Phase, role: Role) -> Cost: ...

    def transfer(self, transfer: Transfer, phase: Phase) -> Cost: ...

    def tail(self, role: Role) -> Tail: ...


def ranks_of(schedule: Schedule, role: Role) -> tuple[int, ...]:
    """The ranks of a role."""
    mesh = next(m for m in schedule.plan.meshes if m.name == role.mesh)
    return tuple(Submesh(mesh, role.fixed).ranks())
