"""`ssdsl show PLAN tasks`: what each role runs, in its order."""

from itertools import groupby

from ssdsl.lower.schedule import LETTERS, Role, Schedule, Task
from ssdsl.show.view import Column, Kind, View

SHOWN = 48
BLOCKS = (
    Column("block", style="bold cyan"),
    Column("on"),
    Column("operators", Kind.COUNT),
    Column("first", Kind.PATH),
    Column("last", Kind.PATH),
    Column("in time", fold=True, style="green"),
    Column("recomputed", Kind.COUNT),
)
ORDER = (Column("role", style="bold cyan"), Column("tasks", Kind.COUNT), Column("order", fold=True))
NOTES = (
    "F is forward, B backward, with the index in time; in halves D (of inputs) and W (of weights)",
    "f and b send a block's result or its gradient to other devices",
    "3x B1 stands for three in a row",
)


def tasks_views(schedule: Schedule, every: bool = False) -> tuple[View, ...]:
    """The blocks, and each role's tasks in the order in which they run."""
    return blocks_view(schedule), order_view(schedule, every)


def blocks_view(schedule: Schedule) -> View:
    """The maximal runs of operators that nothing in the plan separates."""
    paths = {o.name: f"{o.path} {o.kind}".strip() for o in schedule.graph.operators}
    rows = tuple(
        (
            f"block {b.number}",
            str(b.submesh),
            len(b.operators),
            paths[b.operators[0]],
            paths[b.operators[-1]],
            " ".join(f"{t.name}={t.count}" for t in b.time),
            len(b.units),
        )
        for b in schedule.blocks
    )
    return View(f"blocks of {schedule.graph.name}", BLOCKS, rows)


def order_view(schedule: Schedule, every: bool = False) -> View:
    """A row per role; long orders are cut unless `every`."""
    rows = tuple((role.name, len(role.tasks), _order(role, every)) for role in schedule.roles if role.tasks)
    return View("tasks in the order in which each role runs them", ORDER, rows, NOTES)


def _order(role: Role, every: bool) -> str:
    names = [_name(task) for task in role.tasks]
    runs = [(name, len(list(same))) for name, same in groupby(names)]
    words = [name if count == 1 else f"{count}x {name}" for name, count in runs]
    if len(words) > SHOWN and not every:
        words = [*words[: SHOWN // 2], "...", *words[-SHOWN // 2 :]]
    return " ".join(words)


def _name(task: Task) -> str:
    """`F0[2]`: block 0 forward for index 2; `f3[2]`: transfer 3."""
    letter = LETTERS[task.phase]
    at = f"[{','.join(map(str, task.coordinate))}]" if task.coordinate else ""
    return f"{letter}{task.block}{at}" if task.transfer is None else f"{letter.lower()}{task.transfer}{at}"
