"""Receives are posted early, so that a value travels while its receiver computes.

In the order of `sequence.py` a receive stands where its value is nominally ready; in truth it may come sooner, and
waits until the receiver has posted. Nothing waits for a posted receive but the task that reads it, so it may move in
front of tasks. Two things keep it safe: transfers of one direction (values forward, gradients backward), which travel
in a process group of their own, stay in the global order on every device; and at most one value more than the one that
is being read is awaited, so that buffers stay few.
"""

from collections.abc import Sequence
from dataclasses import replace

from ssdsl.lower.needs import Needs
from ssdsl.lower.schedule import Block, Role, Task, Transfer
from ssdsl.plan.plan import Phase


def post_early(roles: Sequence[Role], blocks: tuple[Block, ...], transfers: tuple[Transfer, ...]) -> tuple[Role, ...]:
    """The roles with their receives moved forward."""
    needs = Needs(blocks, transfers)
    return tuple(replace(role, tasks=tuple(_moved(role, transfers, needs))) for role in roles)


def _moved(role: Role, transfers: tuple[Transfer, ...], needs: Needs) -> list[Task]:
    tasks: list[Task] = []
    for task in role.tasks:
        at = len(tasks)
        transfer = None if task.transfer is None else transfers[task.transfer]
        if transfer is not None and transfer.value and not role.is_in(transfer.ends(task.phase)[0]):
            at = _earliest(tasks, task, needs)
        tasks.insert(at, task)
    return tasks


def _earliest(tasks: list[Task], receive: Task, needs: Needs) -> int:
    """Behind the last transfer of the same direction, and before at most one task that reads an earlier value of it."""
    forward = receive.phase is Phase.FORWARD
    for at in range(len(tasks), 0, -1):
        task = tasks[at - 1]
        if task.transfer is None:
            if any((number, way) == (receive.transfer, forward) for number, _, way in needs.of(task)):
                return at - 1
        elif task.phase is receive.phase:
            return at
    return 0
