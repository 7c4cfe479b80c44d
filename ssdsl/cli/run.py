"""`ssdsl run`: compile, launch with torchrun, train, report."""

from dataclasses import asdict

from ssdsl.cli import options
from ssdsl.cli.options import Device, Optimizer, settings
from ssdsl.cli.pipeline import compiled, load
from ssdsl.cli.terminal import print_json, results
from ssdsl.cli.training import train, workplace


def run(
    plan: options.Plan,
    model: options.Model,
    set_: options.Set,
    steps: options.Steps = 10,
    seed: options.Seed = 0,
    device: options.OnDevice = Device.CPU,
    optimizer: options.WithOptimizer = Optimizer.ADAMW,
    lr: options.LearningRate = 1e-3,
    processes: options.Processes = None,
    out: options.Out = None,
    json: options.Json = False,
) -> None:
    """Train a model as a plan says, one local process per device, and report.

    The report has the loss of each step, the step time, communication per collective, and peak memory per process.
    """
    overrides = settings(set_)
    loaded = load(plan, model, seed)
    program = compiled(loaded, overrides)
    from ssdsl.run.launch import Training
    from ssdsl.show.run_report import run_views
    from ssdsl.show.view import table

    training = Training(steps, seed, device.value, optimizer.value, lr)
    with workplace(out) as folder:
        result = train(loaded, program, training, folder, processes, dump=False)
    if json:
        print_json([asdict(rank) for rank in result.ranks])
        return
    for view in run_views(result):
        results.print(table(view, results.width))
