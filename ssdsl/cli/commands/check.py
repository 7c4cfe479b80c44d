"""`ssdsl check`: all checks of a plan, without running it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ssdsl.cli import options
from ssdsl.cli.commands.clusters import named_cluster
from ssdsl.cli.mistakes import fix as change
from ssdsl.cli.mistakes import load_whole
from ssdsl.cli.options import refuse_unused, settings
from ssdsl.cli.pipeline import LoadedPlan, compiled, working
from ssdsl.cli.terminal import print_json, print_views, results, show_diagnostics
from ssdsl.kernel_choice import EAGER
from ssdsl.record import replace
from ssdsl.text.diagnostic import Diagnostic, PlanError

if TYPE_CHECKING:
    from ssdsl.show.view import View
    from ssdsl.workspace import Compiled

Cluster = Annotated[
    str | None,
    options.cluster_option(
        "Also check the nodes and the memory of a cluster: one of `ssdsl clusters`, or a TOML file."
    ),
]
Device = Annotated[
    Literal["cuda"] | None,
    typer.Option(
        "--device",
        help="Also run a step of each role without a GPU: where the host waits for it, and what would fail on it.",
    ),
]
Fix = Annotated[
    bool,
    typer.Option("--fix", help="Change the plan as the helps of its errors say: shows the changes, and asks."),
]
Yes = Annotated[bool, typer.Option("--yes", help="With --fix: do not ask; of several changes none is made.")]
MOST_FIXES = 20


def check(
    context: typer.Context,
    plan: options.Plan,
    model: options.Model,
    set_: options.Set,
    cluster: Cluster = None,
    precision: options.WithPrecision = None,
    kernels: options.SimulatedKernels = EAGER,
    meta: options.Meta = False,
    lock_file: options.LockFile = None,
    device: Device = None,
    fix: Fix = False,
    yes: Yes = False,
    json: options.Json = False,
) -> None:
    """Check a plan against a model without running it: coverage, order, deadlock, repeated work.

    With a cluster also nodes and memory: exits with 1 where a device has too little. With --device cuda also a step
    without kernels and numbers: exits with 1 where the host waits for the GPU and need not, or an operator would fail.
    Where a lock of the communication lies beside the plan (`show PLAN comm --lock`), exits with 1 if it is another one.
    """
    if cluster is None:
        refuse_unused(context, {"kernels": "it is for --cluster"})
    if not fix:
        refuse_unused(context, {"yes": "it is for --fix"})
    overrides = settings(set_)
    chosen = named_cluster(cluster)
    for left in range(MOST_FIXES if fix else 0, -1, -1):
        try:
            loaded = load_whole(plan, model, overrides, meta, precision)
            program = compiled(loaded, overrides, cluster=chosen, kernels=kernels)
            break
        except PlanError as error:
            if not left or not change(plan, error, yes):
                raise
    from ssdsl.lang.parse import parse
    from ssdsl.plan.model_index import index_model
    from ssdsl.show.advice.in_time import more_traffic
    from ssdsl.show.advice.vain_recompute import vain_recompute
    from ssdsl.show.tables.check import check_json, check_views, repeated_warnings
    from ssdsl.show.tables.open_params import open_params
    from ssdsl.sketch.used_files import open_in_used_files

    found: tuple[Diagnostic, ...] = repeated_warnings(program.program)
    found += vain_recompute(program.program, program.source, chosen)
    found += open_in_used_files(parse(loaded.source), loaded.path.parent)
    found += _unlocked(loaded, plan, program, overrides, lock_file, cluster, precision)
    with working("comparing with the plan without splits in time"):
        found += tuple(more_traffic(program, chosen))
    if chosen is not None:
        from ssdsl.show.advice.across_nodes import across_nodes
        from ssdsl.show.advice.capacity import capacity
        from ssdsl.simulate.simulate import simulate

        with working("simulating"):
            found += across_nodes(program.program, chosen)
            report = simulate(program.program, program.source, chosen)
        found += capacity(program.program, program.source, report)
    waits = None
    if device is not None:
        waits, refused = _dry(program, precision)
        found += refused
    show_diagnostics(found)
    program = replace(program, warnings=(*program.warnings, *found))
    too_much = any(d.severity == "error" for d in found)
    if json:
        print_json({**check_json(program, waits), "capture": loaded.comparison})
    else:
        print_views(*check_views(program), *([waits] if waits is not None else []))
        model_index, devices = index_model(loaded.graph), program.plan.devices
        if opened := open_params(loaded.source, loaded.path.parent, model_index, devices, overrides):
            results.print(opened, markup=False)
        results.print(loaded.comparison, markup=False)
        results.print(f"the plan is complete and free of deadlock; {program.proof}", style="green")
    if too_much:
        raise typer.Exit(1)


def _unlocked(
    loaded: LoadedPlan,
    plan: str,
    program: "Compiled",
    overrides: dict[str, int],
    file: str | None,
    cluster: str | None,
    precision: str | None,
) -> tuple[Diagnostic, ...]:
    """What is wrong with the communication by the lock of the plan, if there is one."""
    from ssdsl.show.comm_lock import compare_lock, lock_lines, lock_path, lock_words

    path = Path(file) if file is not None else lock_path(loaded.path)
    if file is None and not path.exists():
        return ()
    words = lock_words(path, loaded.captured.request.spec, overrides, cluster, precision)
    found = compare_lock(path, plan, words, lock_lines(program.program))
    return () if found is None else (found,)


def _dry(program: "Compiled", precision: str | None) -> "tuple[View, tuple[Diagnostic, ...]]":
    """Where a step waits for the GPU, and what is wrong with it."""
    from ssdsl.run.dry.dry_run import dry_run
    from ssdsl.run.dry.findings import findings, wrong
    from ssdsl.show.tables.dry_run import waits_view

    with working("running a step without a GPU"):
        roles = dry_run(program.program, precision)
    return waits_view(findings(roles)), tuple(wrong(roles, program.source))
