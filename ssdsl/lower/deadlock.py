"""Deadlock: whether every role gets to the end of its tasks when a shared task starts only once all of its roles are
there.

That is rendezvous semantics, the strictest that a backend has: nothing is buffered, a send waits for its receive. The
check knows nothing of how the order was made (`order.py`), only what each role runs.
"""

from collections.abc import Sequence

from ssdsl.lower.layout import Submesh
from ssdsl.lower.schedule import Block, Role, Task, Transfer
from ssdsl.text.diagnostic import InternalError


def check_deadlock(roles: Sequence[Role], blocks: Sequence[Block], transfers: Sequence[Transfer]) -> None:
    """Runs the roles against each other, in time linear in their tasks.

    Raises InternalError: roles that wait for each other, with the tasks at which they do.
    """
    members: dict[Submesh, frozenset[int]] = {}

    def meeting(task: Task) -> frozenset[int]:
        """The roles that a task brings together."""
        found: frozenset[int] = frozenset()
        transfer = None if task.transfer is None else transfers[task.transfer]
        for submesh in (blocks[task.block].submesh,) if transfer is None else (transfer.source, transfer.target):
            if submesh not in members:
                members[submesh] = frozenset(k for k, r in enumerate(roles) if r.is_in(submesh))
            found |= members[submesh]
        return found

    position = [0] * len(roles)
    arrived: dict[Task, list[int]] = {}
    moving = list(range(len(roles)))
    while moving:
        role = moving.pop()
        if position[role] == len(roles[role].tasks):
            continue
        task = roles[role].tasks[position[role]]
        here = arrived.setdefault(task, [])
        here.append(role)
        if len(here) == len(meeting(task)):
            for met in here:
                position[met] += 1
            moving += here
    waiting = {k: r.tasks[position[k]] for k, r in enumerate(roles) if position[k] < len(r.tasks)}
    if waiting:
        missing = {k: min(meeting(task) - {*arrived[task]}, default=k) for k, task in waiting.items()}
        raise InternalError(_circle(roles, blocks, waiting, missing))


def _circle(roles: Sequence[Role], blocks: Sequence[Block], waiting: dict[int, Task], missing: dict[int, int]) -> str:
    """Who waits for whom, until a role comes again, or one that is done and never had the task."""
    path: list[int] = []
    role = min(waiting)
    while role in waiting and role not in path:
        path.append(role)
        role = missing[role]
    circle = path[path.index(role) :] if role in path else path
    lines = [f"{roles[k].name} waits for {roles[missing[k]].name} in {_words(waiting[k], blocks)}" for k in circle]
    return "roles wait for each other, and none can go on:\n" + "\n".join(lines)


def _words(task: Task, blocks: Sequence[Block]) -> str:
    """A task as the views show it: `block0.fwd[m = 2]`, `transfer 3 of block1.bwd[m = 0]`."""
    block = blocks[task.block]
    inside = ", ".join(f"{t.name} = {c}" for t, c in zip(block.time, task.coordinate, strict=True))
    what = f"transfer {task.transfer} of " if task.transfer is not None else ""
    return f"{what}{block.name}.{task.phase}" + (f"[{inside}]" if inside else "")
