"""Checks that every role gets to its end: the tasks in the strictest order of events, and the actions as they are.

Tasks are run with rendezvous semantics, the strictest that a backend has: nothing is buffered, a send waits for its
receive. Neither check knows how the order was made.
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


def check_actions(lowering: Lowering) -> Lowering:
    """The same; raises InternalError where the actions end in a deadlock."""
    steps.check_deadlock(lowering.roles, lowering.functions, lowering.messages, lowering.flats)
    return lowering
