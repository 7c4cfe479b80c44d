"""`ssdsl run`: compiles a plan, launches it with torchrun, trains, and reports."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.commands.clusters import named_cluster
from ssdsl.cli.options import refuse_unused, settings
from ssdsl.cli.pictures import save_trace
from ssdsl.cli.pipeline import compiled, evaluation, load, worded
from ssdsl.cli.terminal import print_json, print_views, results, show_diagnostics, talk
from ssdsl.cli.training import (
    check_kernels,
    check_link,
    check_optimizer,
    chosen_nodes,
    compared,
    train,
    warn_of_losses,
    warn_of_nothing,
    workplace,
    writable,
)
from ssdsl.kernel_choice import EAGER
from ssdsl.lang.save import FileMark, check_file
from ssdsl.text.diagnostic import PlanError

if TYPE_CHECKING:
    from ssdsl.run.results import RunResult
    from ssdsl.workspace import Compiled

STOPPED = 75  # EX_TEMPFAIL of sysexits.h: another try goes on

Profile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Save the measured times of tasks and operators, for `ssdsl simulate --costs FILE`."
    ),
]
Trace = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Save the last step as Chrome trace events, beside a simulation with its times."),
]


def run(
    context: typer.Context,
    plan: options.Plan,
    model: options.Model,
    set_: options.Set,
    data: options.Data = None,
    steps: options.AllSteps = 10,
    seed: options.Seed = 0,
    generator: options.WithGenerator = "hash",
    cluster: options.ForCluster = None,
    meta: options.Meta = False,
    device: options.OnDevice = "cpu",
    backend: options.WithBackend = None,
    optimizer: options.AnyOptimizer = "adamw",
    lr: options.LearningRate = 1e-3,
    clip: options.Clip = None,
    accumulate: options.Accumulate = 1,
    precision: options.WithPrecision = None,
    kernels: options.Kernels = EAGER,
    eval_data: options.EvalData = None,
    eval_every: options.EvalEvery = None,
    save: options.Save = None,
    save_every: options.SaveEvery = None,
    keep: options.Keep = 3,
    resume: options.Resume = None,
    allow_nan: options.AllowNan = False,
    find_nan: options.FindNan = False,
    blocking: options.Blocking = False,
    link: options.Link = None,
    processes: options.Processes = None,
    timeout: options.Timeout = 600.0,
    nnodes: options.NodeCount = 1,
    node_rank: options.NodeRank = 0,
    rdzv_endpoint: options.Endpoint = None,
    nproc_per_node: options.PerNode = None,
    max_restarts: options.Restarts = 0,
    out: options.Out = None,
    profile: Profile = None,
    trace: Trace = None,
    json: options.Json = False,
) -> None:
    """Train a model as a plan says, one process per device, and report.

    The report has the loss of each step, the step time, communication per collective, and peak memory per process. On
    several nodes, type the same command on each, with its own --node-rank; node 0 reports.
    """
    unused = {} if eval_data is not None else {"eval_every": "give --eval-data too"}
    if save is None and out is None:
        unused |= dict.fromkeys(("save_every", "keep"), "give --save, or --out, too")
    if allow_nan:
        unused |= {"find_nan": "--allow-nan goes on where it would end: give one of them"}
    if link is not None:
        unused |= {"backend": "--link is a backend: leave it out"}
    refuse_unused(context, unused)
    check_file(profile, FileMark.COSTS)
    check_file(trace, FileMark.TRACE)
    overrides = settings(set_)
    check_kernels(kernels, device)
    check_link(link, device, nnodes)
    nodes = chosen_nodes(nnodes, node_rank, rdzv_endpoint)
    loaded = load(plan, model, seed, generator, meta, precision, trains=True)
    chosen = named_cluster(cluster)
    program = compiled(loaded, overrides, cluster=chosen, kernels=kernels)
    from ssdsl.run.checkpoints.convert import wrong_checkpoints
    from ssdsl.run.checkpoints.errors import CheckpointsOfEarlierRun
    from ssdsl.run.data import check_data, check_eval_data
    from ssdsl.run.errors import RunStopped
    from ssdsl.runtime.checkpoints.folder import has_checkpoint, newest
    from ssdsl.runtime.options import Training
    from ssdsl.show.tables.run_report import run_views

    recorded = profile is not None or trace is not None
    check_optimizer(optimizer)
    kept = None if out is None else Path(out).absolute() / "checkpoints"
    kept = kept if save is None else writable(save)
    if kept is not None and has_checkpoint(kept) and not _is_of(kept, resume):
        raise PlanError(CheckpointsOfEarlierRun(None, str(kept)))
    start = None if resume is None else Path(resume).absolute()
    if start is not None and start != kept:  # what the run itself saves to may be new
        with wrong_checkpoints():
            newest(start)
    judges, remarks = check_eval_data(eval_data, loaded.model) if eval_data is not None else (None, ())
    show_diagnostics(remarks)
    training = Training(
        steps,
        seed,
        device,
        optimizer,
        lr,
        recorded,
        timeout,
        data=check_data(data, loaded.model) if data is not None else None,
        backend=backend,
        clip=clip,
        accumulate=accumulate,
        eval_data=judges,
        eval_every=eval_every,
        save=kept,
        save_every=save_every,
        keep=keep,
        resume=start,
        allow_nan=allow_nan,
        find_nan=find_nan,
        blocking=blocking,
        link=link,
        kernel_mode=kernels.mode,
    )
    evaluates = evaluation(loaded, program, (), chosen) if eval_data is not None else None
    loaded = compared(loaded)
    with workplace(out, nodes) as folder:
        result = train(
            loaded, program, training, folder, processes, False, nodes, nproc_per_node, max_restarts, evaluates
        )
    if result.is_stopped:
        show_diagnostics([RunStopped(None, result.first + result.steps, steps, os.path.relpath(kept or ""))])
    if nodes.rank > 0:
        talk.print(f"node {nodes.rank} of {nodes.count}: its {len(result.ranks)} ranks have trained; node 0 reports")
        _end(result)
        return
    warn_of_losses(result, lr)
    if not result.is_stopped:
        warn_of_nothing(result, steps)
    if recorded and result.steps:
        _save(program, result, profile, trace)
    if json:
        print_json([{name: v for name, v in asdict(rank).items() if name != "recorded"} for rank in result.ranks])
    else:
        print_views(*(run_views(result) if result.steps else ()))
        results.print(loaded.comparison, markup=False)
    _end(result)


def _end(result: "RunResult") -> None:
    """Ends the command of a run that has stopped before its last step."""
    if result.is_stopped:
        raise typer.Exit(STOPPED)


def _is_of(run: Path, resume: str | None) -> bool:
    """Whether `--resume` names the folder of a run, or a checkpoint in it."""
    return resume is not None and Path(resume).absolute().is_relative_to(run)


def _save(program: "Compiled", result: "RunResult", profile: str | None, trace: str | None) -> None:
    """Saves the measurements of a recorded run, as costs and as a timeline."""
    from ssdsl.cli.commands.clusters import chosen_cluster
    from ssdsl.run.profile.recorded import measured_timeline, measured_times
    from ssdsl.run.profile.recorded_profile import recorded_profile
    from ssdsl.simulate.profile.measured import Measured
    from ssdsl.simulate.profile.read_costs import digest, write_costs
    from ssdsl.simulate.simulate import simulate

    times = measured_times(program.program, result)
    if profile is not None:
        operators = recorded_profile(program.program, result, worded(program)) if result.ranks[0].clocked else None
        write_costs(profile, times, worded(program), digest(program.program), operators)
        talk.print(f"{profile}: for `ssdsl simulate --costs {profile}`", highlight=False, markup=False)
    if trace is not None:
        costs = Measured(program.program, times)
        simulated = simulate(program.program, program.source, chosen_cluster("laptop"), costs)
        save_trace(trace, measured_timeline(program.program, program.source, result), simulated.timeline)
