"""Measured costs, from a JSON file: times of single tasks, or of a forward, the halves of a backward and a transfer.

    {"unit": "ms", "TF": 18.5, "TB": 18.1, "TW": 9.3, "Tcomm": 0.6, "tasks": {"block0.fwd": 17.9}}

`TF`, `TB` and `TW` are the times of a stage for one micro-batch: forward, gradients of inputs, gradients of weights (a
backward that is not in halves takes both). If the plan orders tasks, only these count, and others cost nothing; the
functions of a stage share its time in proportion to their arithmetic. `Tcomm` is the time of a transfer. `tasks`,
`transfers`, `reduce` and `optimizer` have the times of single tasks (`block0.fwd`), transfers (`0.fwd`) and roles,
which take precedence.
"""

from collections.abc import Iterable
from typing import assert_never

from ssdsl.ir.comm import Signal
from ssdsl.ir.function import Function, OpPart
from ssdsl.ir.program import Compute, Free, OnFlat, Program, Role, Start, Traced, Travel, Update, Wait
from ssdsl.plan.plan import Phase
from ssdsl.record import Record, field
from ssdsl.simulate.price.costs import FREE, CommCost, Cost

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


class Times(Record):
    """The times in a file of costs, in seconds."""

    forward: float = 0.0
    dgrad: float = 0.0
    wgrad: float = 0.0
    transfer: float = 0.0
    tasks: dict[str, float] = field(default_factory=dict)
    transfers: dict[str, float] = field(default_factory=dict)
    reduce: dict[str, float] = field(default_factory=dict)
    optimizer: dict[str, float] = field(default_factory=dict)


class Measured:
    """The costs of a program from the times in such a file."""

    cores = None  # the ranks whose tasks were measured shared theirs already

    def __init__(self, program: Program, times: Times) -> None:
        self.program, self.times = program, times
        self.flops = {o.name: o.flops for o in program.graph.operators}
        self.work = {f.number: 1 + self._flops(f.operators()) for f in program.functions}
        ordered = {(task.function, task.phase) for task in program.stated}
        self.counted = ordered or {(f.number, p) for f in program.functions for p in Phase}
        self.stages: dict[tuple[int, Phase], int] = {}
        for number, phase in sorted(self.counted):
            key = program.functions[number].stage, phase
            self.stages[key] = self.stages.get(key, 0) + self.work[number]

    def of(self, action: Traced, role: Role) -> Cost:
        """The cost of an action on a role. The time that a role still reduces gradients after its tasks (`reduce`) is
        the communication of its update."""
        match action:
            case Compute():
                return Cost(self._task(action.function, action.phase))
            case Start():
                return self._journey(action.message, action.gradient)
            case Update():
                return Cost(self.times.optimizer.get(role.name, 0.0), self.times.reduce.get(role.name, 0.0))
            case OnFlat() | Travel() | Wait() | Free():
                return FREE
            case _:
                assert_never(action)

    def of_sections(self, function: Function, role: Role, phase: Phase) -> list[int]:
        """The arithmetic of each section."""
        return [self._flops(i for i in section.body if isinstance(i, OpPart)) for section in function.sections]

    def _flops(self, operators: Iterable[OpPart]) -> int:
        return sum(self.flops[op.operator] for op in operators)

    def _task(self, number: int, phase: Phase) -> float:
        """The task's own time, or its function's share of the stage's."""
        function, times = self.program.functions[number], self.times
        if (own := times.tasks.get(f"{function.name}.{phase}")) is not None:
            return own
        if (number, phase) not in self.counted:
            return 0.0
        whole = phase.sum(times.forward, times.dgrad, times.wgrad)
        return whole * (self.work[number] / self.stages[function.stage, phase])

    def _journey(self, number: int, gradient: bool) -> Cost:
        """The cost of a message: its own time, or else `Tcomm`; a signal costs nothing by default."""
        of_all = 0.0 if isinstance(self.program.messages[number], Signal) else self.times.transfer
        phase = Phase.BACKWARD if gradient else Phase.FORWARD
        time = self.times.transfers.get(f"{number}.{phase}", of_all)
        return Cost(0.0, time, (CommCost("send", "", 1, 0, 2),))
