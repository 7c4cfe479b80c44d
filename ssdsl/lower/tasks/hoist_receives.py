"""Posts receives early, so that a value travels while its receiver computes.

`schedule_tasks.py` puts a receive where its value is nominally ready. The real value may come sooner, and then waits
until the receive is posted. Only the task that reads the value blocks on a posted receive, so the receive may move in
front of other tasks. Two rules keep this safe. Transfers of one direction (values forward, gradients backward) have a
process group of their own and keep the global order on every device. And a role awaits at most one value beside the
one that it reads next, so that buffers stay few.
"""

from collections.abc import Iterator
from dataclasses import replace

from ssdsl.ir.action import At, Compute
from ssdsl.ir.comm import Transfer
from ssdsl.ir.parts import parts_read
from ssdsl.ir.program import Role
from ssdsl.lower.lowering import Lowering
from ssdsl.lower.tasks.task import Carry, Task
from ssdsl.plan.plan import Phase


def hoist_receives(lowering: Lowering) -> Lowering:
    """Moves the receives of each role forward in its tasks."""
    awaited = AwaitedTransfers(lowering)
    roles = zip(lowering.roles, lowering.tasks, strict=True)
    return replace(lowering, tasks=tuple(tuple(_moved(lowering, r, tasks, awaited)) for r, tasks in roles))


class AwaitedTransfers:
    """What must have arrived before a task can start."""

    def __init__(self, lowering: Lowering) -> None:
        self.incoming: dict[int, dict[At, list[Carry]]] = {}
        self.returning: dict[int, list[Transfer]] = {}
        moved = {(m.target_slot, m.consumer): m for m in lowering.messages if isinstance(m, Transfer)}
        for function in lowering.functions:
            for given in function.inputs:
                if (transfer := moved.get((given.slot, function.number))) is not None:
                    arriving = self.incoming.setdefault(function.number, {})
                    for part, at in parts_read(given, function.time):
                        arriving.setdefault(at, []).append(Carry(transfer.number, part, False))
        for transfer in moved.values():
            if transfer.backward is not None:
                self.returning.setdefault(transfer.producer, []).append(transfer)

    def of(self, task: Compute) -> Iterator[Carry]:
        """The messages that a task waits for, in order, each once."""
        return iter(dict.fromkeys(self._of(task)))

    def _of(self, task: Compute) -> Iterator[Carry]:
        if task.phase is Phase.FORWARD:
            yield from self.incoming.get(task.function, {}).get(task.at, ())
        elif task.phase is not Phase.WGRAD:
            for transfer in self.returning.get(task.function, ()):
                yield Carry(transfer.number, task.at, True)


def _moved(lowering: Lowering, role: Role, tasks: tuple[Task, ...], awaited: AwaitedTransfers) -> list[Task]:
    moved: list[Task] = []
    for task in tasks:
        at = len(moved)
        if isinstance(task, Carry):
            message = lowering.messages[task.message]
            if isinstance(message, Transfer) and not role.is_in(message.ends(task.gradient)[0]):
                at = _earliest(moved, task, awaited)
        moved.insert(at, task)
    return moved


def _earliest(tasks: list[Task], receive: Carry, awaited: AwaitedTransfers) -> int:
    """Behind the last message of the same direction, and before at most one task that reads an earlier value of it."""
    for at in range(len(tasks), 0, -1):
        task = tasks[at - 1]
        if isinstance(task, Carry):
            if task.gradient is receive.gradient:
                return at
        elif any((c.message, c.gradient) == (receive.message, receive.gradient) for c in awaited.of(task)):
            return at - 1
    return 0
