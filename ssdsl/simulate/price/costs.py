"""Costs of actions: the interface between their sources (a roofline, a file of measured times) and the simulator."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from ssdsl.ir.function import Function
from ssdsl.ir.program import Role, Traced
from ssdsl.plan.plan import Phase
from ssdsl.record import Record, replace


class CommCost(Record):
    """The communication of one device: `calls` of a kind, `size_bytes` in total, over links of a level, among `ranks`
    devices, in `time_s` seconds."""

    kind: str
    level: str
    calls: int
    size_bytes: int
    ranks: int
    time_s: float = 0.0


class Cost(Record):
    """The cost of an action: the seconds that it computes and communicates, and its communication. A message
    communicates for as long as its bytes leave, and arrives `latency_s` seconds after they have left; the latencies of
    a collective are in `communication_s`, as its rounds follow each other. Collectives that run while an operator of
    the action computes take `hidden_s` seconds of `compute_s`, beside what they take of `communication_s`."""

    compute_s: float = 0.0
    communication_s: float = 0.0
    sent: tuple[CommCost, ...] = ()
    latency_s: float = 0.0
    hidden_s: float = 0.0

    @property
    def time_s(self) -> float:
        """The seconds for which the action occupies its devices, or a message its link."""
        return self.compute_s + self.communication_s

    def slowed(self, by_s: float) -> "Cost":
        """The cost of the same, if it computes for longer."""
        return replace(self, compute_s=self.compute_s + by_s)

    @property
    def arrives_s(self) -> float:
        """The seconds from the start of the action until all of it has arrived."""
        return self.time_s + self.latency_s


FREE = Cost()


class Costs(Protocol):
    """A source of costs. Implementations hold the program and, if they need it, the cluster.

    `cores` is the number of cores that all ranks share, if its times are those of a rank that has one for itself; None
    if each rank has a device, or if times are those of ranks that shared cores already.
    """

    @property
    def cores(self) -> int | None: ...

    def of(self, action: Traced, role: Role) -> Cost:
        """The cost of an action on the slowest device of a role. A `Start` costs its message's journey, a `Travel` and
        a `StartReduce` their collectives, a `WaitReduce` only those after them (gathers of the sum, the sum of tied
        weights), a `Wait` nothing. The communication of an `Update` is that which still completes gradients."""
        ...

    def of_sections(self, function: Function, role: Role, phase: Phase) -> Sequence[float]:
        """The time that a forward, or a whole backward, of a function takes in each of its sections, in any unit."""
        ...


def total(costs: Iterable[Cost]) -> Cost:
    """The cost of several actions, one after another."""
    found = list(costs)
    return Cost(
        sum([c.compute_s for c in found]),
        sum([c.communication_s for c in found]),
        tuple([s for c in found for s in c.sent]),
        sum([c.latency_s for c in found]),
        sum([c.hidden_s for c in found]),
    )
