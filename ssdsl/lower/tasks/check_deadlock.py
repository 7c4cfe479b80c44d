"""Checks that every role gets to the end of its tasks, with rendezvous semantics, the strictest that a backend has.

Nothing is buffered, a send waits for its receive. The check does not know how the order was made. That the actions end
as well, in which receives are posted early, is a row of `ir/verify.py`.
"""

from dataclasses import replace

from ssdsl.ir import steps
from ssdsl.ir.action import Action, Compute, End, Start
from ssdsl.lower.lowering import Lowering
from ssdsl.lower.tasks.task import Task


def check_order(lowering: Lowering) -> Lowering:
    """The same; raises InternalError where the tasks, shared ones met by all of their roles, end in a deadlock."""
    roles = [
        replace(role, actions=tuple(map(_met, tasks)))
        for role, tasks in zip(lowering.roles, lowering.tasks, strict=True)
    ]
    steps.check_deadlock(roles, lowering.functions, lowering.messages, lowering.flats, strict=True)
    return lowering


def _met(task: Task) -> Action:
    return task if isinstance(task, Compute) else Start(task.message, task.at, task.gradient, End.BOTH)
