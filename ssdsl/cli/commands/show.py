"""`ssdsl show`: views of a model under a plan."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.commands.clusters import chosen_cluster, named_cluster
from ssdsl.cli.options import refuse_unused, settings
from ssdsl.cli.pipeline import (
    LoadedPlan,
    check_params,
    compiled,
    compiled_for,
    fits,
    load,
    planned,
    simulated,
    state_of,
)
from ssdsl.cli.terminal import print_json, print_text, print_views, results
from ssdsl.kernel_choice import EAGER
from ssdsl.lang.suggest import joined, suggest

if TYPE_CHECKING:
    from ssdsl.cluster.cluster import Cluster
    from ssdsl.show.view import View
    from ssdsl.simulate.report import Report
    from ssdsl.workspace import Compiled


class ViewName(StrEnum):
    DIMS = "dims"
    OPS = "ops"
    GRAPH = "graph"
    TASKS = "tasks"
    COMM = "comm"
    PROGRAM = "program"
    SCHEDULE = "schedule"
    MEMORY = "memory"


HELP = (
    "dims: what a plan can split by. graph: the captured model, as typed text. ops: how the plan cuts and places each "
    "operator. tasks: what each role runs, in order. "
    "comm: the communication that follows. program: all of it, as typed text. schedule: a chart of who does what when. "
    "memory: what each device holds."
)
COMPILED = (ViewName.TASKS, ViewName.COMM, ViewName.PROGRAM)
TIMED = (ViewName.SCHEDULE, ViewName.MEMORY)
USES = {  # options that are not for every view
    "every": (ViewName.DIMS, ViewName.GRAPH, ViewName.OPS, *COMPILED),
    "cluster": (*COMPILED, *TIMED),
    "kernels": (ViewName.PROGRAM, *TIMED),
    "costs": TIMED,
    "window": (ViewName.SCHEDULE,),
    "transfers": (ViewName.SCHEDULE,),
    "role": (ViewName.PROGRAM,),
    "lock": (ViewName.COMM,),
    "lock_file": (ViewName.COMM,),
    "master_weights": TIMED,
    "fp32_grads": TIMED,
}
ShownView = Annotated[ViewName, typer.Argument(help=HELP)]
OnCluster = Annotated[
    str | None,
    options.cluster_option(
        "Choose communication and count time for it: one of `ssdsl clusters`, or a TOML file.",
        show_default="laptop in schedule and memory, else processes of one machine",
    ),
]
Window = Annotated[
    str | None, typer.Option(metavar="FROM..TO", help="Show only this part of the schedule, in milliseconds.")
]
Transfers = Annotated[bool, typer.Option("--transfers", help="Show a row for the transfers in the schedule, too.")]
Every = Annotated[bool, typer.Option("--all", help="Show each of the repeated layers, which else share a row.")]
Lock = Annotated[
    bool,
    typer.Option("--lock", help="Write the communication into a file beside the plan, with which `check` compares."),
]
Role = Annotated[
    str | None, typer.Option("--role", metavar="NAME", help="Show only this role's part of the program: gpus_pp0.")
]


def show(
    context: typer.Context,
    plan: options.Plan,
    model: options.Model,
    set_: options.Set,
    view: ShownView = ViewName.DIMS,
    every: Every = False,
    cluster: OnCluster = None,
    costs: options.Costs = None,
    window: Window = None,
    transfers: Transfers = False,
    role: Role = None,
    lock: Lock = False,
    lock_file: options.LockFile = None,
    precision: options.WithPrecision = None,
    kernels: options.SimulatedKernels = EAGER,
    master_weights: options.Masters = True,
    fp32_grads: options.Fp32Grads = False,
    meta: options.Meta = False,
    json: options.Json = False,
) -> None:
    """Show what a plan makes of a model."""
    others = {name: joined([f"`show {v}`" for v in views], "and") for name, views in USES.items() if view not in views}
    refuse_unused(context, {name: f"it is for {views}" for name, views in others.items()})
    overrides = settings(set_)
    check_params(plan, overrides)
    chosen = chosen_cluster(cluster or "laptop") if view in TIMED else named_cluster(cluster)
    loaded = load(plan, model, meta=meta, precision=precision)
    if lock or lock_file is not None:
        refuse_unused(context, {"every": "a lock has repeated layers in one line"})
        program = compiled(loaded, overrides, cluster=chosen)
        _lock(loaded, program, overrides, lock_file, cluster, precision, json)
        return
    if view is ViewName.GRAPH:
        from ssdsl.show.tables.program import shown_graph

        _text("graph", shown_graph(loaded.graph, every=every or json), json)
        return
    if view is ViewName.PROGRAM:
        _program(compiled(loaded, overrides, cluster=chosen, kernels=kernels), role, every, json)
        return
    if view in TIMED:
        assert chosen is not None
        program = compiled(loaded, overrides, cluster=compiled_for(chosen, costs), kernels=kernels)
        report = simulated(program, chosen, costs, state_of(master_weights, fp32_grads))
        _timed(report, view, window, transfers, json)
        fits(program, report)
        return
    if json and view is ViewName.TASKS:
        from ssdsl.show.tables.tasks import tasks_json

        print_json(tasks_json(compiled(loaded, overrides, cluster=chosen).program))
        return
    views = _views(loaded, overrides, view, every, chosen)
    from ssdsl.show.view import as_json

    if json:
        print_json([row for shown in views for row in as_json(shown)])
        return
    print_views(*views)


def _lock(
    loaded: LoadedPlan,
    program: "Compiled",
    overrides: dict[str, int],
    file: str | None,
    cluster: str | None,
    precision: str | None,
    json: bool,
) -> None:
    """Writes the lock of a plan's communication, and says what is new in it."""
    from ssdsl.show.comm_lock import lock_lines, lock_path, lock_words, write_lock

    path = Path(file) if file is not None else lock_path(loaded.path)
    words = lock_words(path, loaded.captured.request.spec, overrides, cluster, precision)
    lines = lock_lines(program.program)
    state = write_lock(path, loaded.path, words, lines)
    if json:
        print_json({"lock": str(path), "section": words, "state": state, "lines": [*lines]})
    else:
        results.print(
            f"{path}: {len(lines)} lines of [{words}], {state}", markup=False, highlight=False, soft_wrap=True
        )


def _views(
    loaded: LoadedPlan, overrides: dict[str, int], view: ViewName, every: bool, cluster: "Cluster | None"
) -> "tuple[View, ...]":
    from ssdsl.show.advice.exposed import exposed_on
    from ssdsl.show.tables.communication import communication_view
    from ssdsl.show.tables.operators import dims_view, operators_view
    from ssdsl.show.tables.tasks import tasks_views

    match view:
        case ViewName.DIMS:
            return (dims_view(loaded.graph, every),)
        case ViewName.OPS:
            return (operators_view(planned(loaded, overrides), every),)
        case ViewName.TASKS:
            return tasks_views(compiled(loaded, overrides, cluster=cluster).program, every)
        case ViewName.COMM:
            program = compiled(loaded, overrides, cluster=cluster)
            if cluster is None or every:
                return (communication_view(program.program, every),)
            waits = exposed_on(program.program, cluster, simulated(program, cluster))
            return (communication_view(program.program, exposed=waits),)
    raise AssertionError(f"{view} is drawn from a simulation")


def _program(compiled: "Compiled", role: str | None, every: bool, json: bool) -> None:
    """Prints the program as text, all of it or one role's part."""
    from ssdsl.show.tables.program import shown_program

    program = compiled.program
    roles = [r for r in program.roles if role in (None, r.name)]
    if not roles:
        known = [r.name for r in program.roles]
        hint = suggest(role or "", known) or f"there are {', '.join(known[:8])}"
        raise typer.BadParameter(f"there is no role `{role}`: {hint}", param_hint="'--role'")
    _text("program", shown_program(program, roles if role is not None else None, every=every or json), json)


def _text(what: str, text: str, json: bool) -> None:
    if json:
        print_json({what: text})
    else:
        print_text(text)


def _timed(report: "Report", view: ViewName, window: str | None, transfers: bool, json: bool) -> None:
    """Prints the views of a simulated step."""
    from ssdsl.show.charts.gantt import gantt
    from ssdsl.show.tables.memory import memory_curve, memory_views
    from ssdsl.show.tables.report import report_json

    if json:
        print_json(report_json(report))
        return
    if view is ViewName.SCHEDULE:
        results.print(gantt(report.timeline, results.width, transfers, _seconds(window, report.step_s)))
        return
    print_views(*memory_views(report.timeline))
    results.print(memory_curve(report.timeline, results.width))


def _seconds(window: str | None, step_s: float) -> tuple[float, float] | None:
    """`--window 10..20` in milliseconds, as seconds. Raises typer.BadParameter if it is outside the step."""
    if window is None:
        return None
    start, dots, end = window.partition("..")
    try:
        found = float(start or 0) / 1e3, float(end) / 1e3 if end else step_s
    except ValueError:
        found = (0.0, 0.0)
    if not dots or not 0 <= found[0] < min(found[1], step_s):
        step_ms = f"{step_s * 1e3:.3g}"
        raise typer.BadParameter(
            f"`{window}` is no part of 0..{step_ms} ms, as in --window 0..{step_s * 500:.3g}", param_hint="'--window'"
        )
    return found
