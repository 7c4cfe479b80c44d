"""`ssdsl show PLAN tasks`: the tasks of each role in their order."""

from itertools import groupby
from typing import Any

from ssdsl.ir.program import Action, BeginReduce, Compute, GatherParam, Program, Start, Update
from ssdsl.show.view import Column, ColumnKind, View, as_json

SHOWN = 48
FUNCTIONS = (
    Column("block", style="bold cyan"),
    Column("on"),
    Column("operators", ColumnKind.COUNT),
    Column("first", ColumnKind.PATH, drop=1),
    Column("last", ColumnKind.PATH, drop=2),
    Column("in time", fold=True, style="green"),
    Column("recomputed", ColumnKind.COUNT),
)
ORDER = (Column("role", style="bold cyan"), Column("tasks", ColumnKind.COUNT), Column("order", fold=True))
NOTES = (
    "F is forward, B backward, with the index in time; in halves D (of inputs) and W (of weights)",
    "f and b post a message or its gradient, to send it or to receive it",
    "R reduces gradients, O is the optimizer, G gathers weights; 3x B1 stands for three in a row",
)


def tasks_views(program: Program, every: bool = False) -> tuple[View, ...]:
    """The functions, and each role's tasks in the order in which they run."""
    return functions_view(program), order_view(program, every)


def tasks_json(program: Program) -> dict[str, Any]:
    """The tables as JSON, with every task of every order."""
    roles = [(role.name, [name for a in role.actions if (name := _name(a))]) for role in program.roles if role.actions]
    tasks = [{"role": name, "tasks": len(order), "order": order} for name, order in roles]
    return {"blocks": as_json(functions_view(program)), "tasks": tasks}


def functions_view(program: Program) -> View:
    """The functions: maximal runs of operators that nothing in the plan separates. `recomputed` counts their recomputed
    sections."""
    paths = {o.name: f"{program.plan.of(o.name).module(o)} {o.kind}" for o in program.graph.operators}
    rows = []
    for f in program.functions:
        operators = [op.operator for op in f.operators()]
        ends = paths[operators[0]], paths[operators[-1]]
        time = " ".join(f"{t.name}={t.parts}" for t in f.time)
        rows.append((f.name, str(f.submesh), len(operators), *ends, time, sum(s.recompute for s in f.sections)))
    return View(f"blocks of {program.graph.name}", FUNCTIONS, tuple(rows))


def order_view(program: Program, every: bool = False) -> View:
    """A row per role; long orders are cut short unless `every`."""
    rows = []
    for role in (r for r in program.roles if r.actions):
        names = [name for action in role.actions if (name := _name(action))]
        rows.append((role.name, len(names), _order(names, every)))
    return View("tasks in the order in which each role runs them", ORDER, tuple(rows), NOTES)


def _order(names: list[str], every: bool) -> str:
    runs = [(name, len(list(same))) for name, same in groupby(names)]
    words = [name if count == 1 else f"{count}x {name}" for name, count in runs]
    if len(words) > SHOWN and not every:
        words = [*words[: SHOWN // 2], "...", *words[-SHOWN // 2 :]]
    return " ".join(words)


def _name(action: Action) -> str:
    """`F0[2]`: block 0 forward for index 2; `f3[2]`: message 3. Empty for actions that take no time."""
    match action:
        case Compute():
            return f"{action.phase.letter}{action.function}{_at(action.at)}"
        case Start():
            return f"{'b' if action.gradient else 'f'}{action.message}{_at(action.at)}"
        case BeginReduce():
            return f"R{action.flat}"
        case Update():
            return "O"
        case GatherParam():
            return f"G{action.flat}"
        case _:
            return ""


def _at(at: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, at))}]" if at else ""
