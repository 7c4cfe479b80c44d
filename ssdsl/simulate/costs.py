"""What actions cost: the interface between those who know (a roofline, a file of measured times) and the simulator."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ssdsl.ir.action import Action
from ssdsl.ir.program import Role


@dataclass(frozen=True, slots=True)
class CommCost:
    """Communication of one device: `calls` of a kind, of `size_bytes` together, over links of a level. `ranks` devices
    take part."""

    kind: str
    level: str
    calls: int
    size_bytes: int
    ranks: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that an action computes, and communicates."""

    compute_s: float = 0.0
    communication_s: float = 0.0
    sent: tuple[CommCost, ...] = ()

    @property
    def time_s(self) -> float:
        return self.compute_s + self.communication_s


FREE = Cost()


class Costs(Protocol):
    """Implementations hold the program and the cluster."""

    def of(self, action: Action, role: Role) -> Cost:
        """What an action costs the slowest device of a role. A `Start` costs its message's journey, a `StartReduce`
        its collectives, a `WaitReduce` only what happens behind these, a `Wait` nothing. The communication of an
        `Update` is what still completes gradients then."""
        ...


def total(costs: Iterable[Cost]) -> Cost:
    """One after another."""
    found = tuple(costs)
    return Cost(
        sum(c.compute_s for c in found),
        sum(c.communication_s for c in found),
        tuple(s for c in found for s in c.sent),
    )
