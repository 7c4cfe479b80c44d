"""Costs that were measured, from a JSON file: of every task, or of a forward, the halves of a backward and a transfer.

    {"unit": "ms", "TF": 18.5, "TB": 18.1, "TW": 9.3, "Tcomm": 0.6, "tasks": {"block0.fwd": 17.9}}

`TF`, `TB` and `TW` are the times of a stage for one micro-batch: forward, gradients of inputs, gradients of weights (a
backward that is not cut in halves takes both). Where the plan orders tasks, a stage is what it orders, and what it
leaves out costs nothing; its blocks share the time by their arithmetic. `Tcomm` is the time of a transfer. `tasks`,
`transfers`, `reduce` and `optimizer` give single tasks (`block0.fwd`), transfers (`0.fwd`) and roles; they go before.
"""

from dataclasses import dataclass, field

from ssdsl.lower.schedule import Block, Role, Schedule, Transfer
from ssdsl.plan.plan import Phase
from ssdsl.simulate.costs import Cost, Message, Tail

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


@dataclass(frozen=True, slots=True)
class Times:
    """A file of costs, in seconds."""

    forward: float = 0.0
    dgrad: float = 0.0
    wgrad: float = 0.0
    transfer: float = 0.0
    tasks: dict[str, float] = field(default_factory=dict)
    transfers: dict[str, float] = field(default_factory=dict)
    reduce: dict[str, float] = field(default_factory=dict)
    optimizer: dict[str, float] = field(default_factory=dict)


class Measured:
    """The costs of a schedule by such a file."""

    def __init__(self, schedule: Schedule, times: Times) -> None:
        self.schedule, self.times = schedule, times
        flops = {o.name: o.flops for o in schedule.graph.operators}
        self.work = {b.number: 1 + sum(flops[o] for o in b.operators) for b in schedule.blocks}
        ordered = {(task.block, task.phase) for task in schedule.stated}
        self.counted = ordered or {(b.number, p) for b in schedule.blocks for p in Phase}
        self.stages: dict[tuple[int, Phase], int] = {}
        for number, phase in sorted(self.counted):
            key = schedule.blocks[number].stage, phase
            self.stages[key] = self.stages.get(key, 0) + self.work[number]

    def task(self, block: Block, phase: Phase, role: Role) -> Cost:
        """The task's own time, or its block's share of the stage's."""
        if (own := self.times.tasks.get(f"{block.name}.{phase}")) is not None:
            return Cost(own)
        if (block.number, phase) not in self.counted:
            return Cost()
        share = self.work[block.number] / self.stages[block.stage, phase]
        times = self.times
        whole = {
            Phase.FORWARD: times.forward,
            Phase.BACKWARD: times.dgrad + times.wgrad,
            Phase.DGRAD: times.dgrad,
            Phase.WGRAD: times.wgrad,
        }[phase]
        return Cost(whole * share)

    def transfer(self, transfer: Transfer, phase: Phase) -> Cost:
        """Its own time, or that of all."""
        time = self.times.transfers.get(f"{transfer.number}.{phase}", self.times.transfer if transfer.value else 0.0)
        return Cost(0.0, time, (Message("send", "", 1, 0, 2),))

    def tail(self, role: Role) -> Tail:
        times = self.times
        return Tail(Cost(0.0, times.reduce.get(role.name, 0.0)), Cost(times.optimizer.get(role.name, 0.0)))
