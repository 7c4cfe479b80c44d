"""`ssdsl run`: compile, launch with torchrun, train, report."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.options import Device, Generator, Optimizer, settings
from ssdsl.cli.pictures import save_trace
from ssdsl.cli.pipeline import compiled, load
from ssdsl.cli.terminal import print_json, results, talk
from ssdsl.cli.training import chosen_nodes, train, warn_of_losses, workplace

if TYPE_CHECKING:
    from ssdsl.compile import Compiled
    from ssdsl.run.result import RunResult

Profile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Save the measured times of tasks, for `ssdsl simulate --costs FILE`."),
]
Trace = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Save the last step as Chrome trace events, beside a simulation with its times."),
]


def run(
    plan: options.Plan,
    model: options.Model,
    set_: options.Set,
    data: options.Data = None,
    steps: options.Steps = 10,
    seed: options.Seed = 0,
    generator: options.WithGenerator = Generator.HASH,
    meta: options.Meta = False,
    device: options.OnDevice = Device.CPU,
    backend: options.WithBackend = None,
    optimizer: options.WithOptimizer = Optimizer.ADAMW,
    lr: options.LearningRate = 1e-3,
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
    overrides = settings(set_)
    nodes = chosen_nodes(nnodes, node_rank, rdzv_endpoint)
    loaded = load(plan, model, seed, generator.value, meta)
    program = compiled(loaded, overrides)
    from ssdsl.run.data import check_data
    from ssdsl.run.launch import Training
    from ssdsl.show.run_report import run_views
    from ssdsl.show.view import table

    recorded = profile is not None or trace is not None
    given = check_data(data, loaded.model) if data is not None else None
    training = Training(steps, seed, device.value, optimizer.value, lr, recorded, timeout, given, backend)
    with workplace(out) as folder:
        result = train(loaded, program, training, folder, processes, False, nodes, nproc_per_node, max_restarts)
    if nodes.rank > 0:
        talk.print(f"node {nodes.rank} of {nodes.count}: its {len(result.ranks)} ranks have trained; node 0 reports")
        return
    warn_of_losses(result, lr)
    if recorded:
        _save(program, result, profile, trace)
    if json:
        print_json([{name: v for name, v in asdict(rank).items() if name != "recorded"} for rank in result.ranks])
        return
    for view in run_views(result):
        results.print(table(view, results.width))


def _save(program: "Compiled", result: "RunResult", profile: str | None, trace: str | None) -> None:
    """What a recorded run measured, as costs and as a picture."""
    from ssdsl.cli.clusters import chosen_cluster
    from ssdsl.run.recorded import measured_timeline, measured_times
    from ssdsl.simulate.measured import Measured
    from ssdsl.simulate.read_costs import write_costs
    from ssdsl.simulate.simulate import simulate

    times = measured_times(program.program, result)
    if profile is not None:
        write_costs(profile, times)
        talk.print(f"{profile}: for `ssdsl simulate --costs {profile}`", highlight=False)
    if trace is not None:
        costs = Measured(program.program, times)
        simulated = simulate(program.program, program.source, chosen_cluster("laptop"), costs)
        save_trace(trace, measured_timeline(program.program, program.source, result), simulated.timeline)
