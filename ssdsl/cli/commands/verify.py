"""`ssdsl verify`: compares the plan's losses, gradients and weights with those of a single device."""

import typer

from ssdsl.cli import options
from ssdsl.cli.commands.clusters import named_cluster
from ssdsl.cli.options import settings
from ssdsl.cli.pipeline import compiled, load, working
from ssdsl.cli.terminal import print_json, print_views, results, show_diagnostics
from ssdsl.cli.training import check_kernels, check_optimizer, compared, train, warn_of_losses, workplace
from ssdsl.kernel_choice import EAGER


def verify(
    plan: options.Plan,
    model: options.Model,
    set_: options.Set,
    steps: options.Steps = 3,
    seed: options.Seed = 0,
    generator: options.WithGenerator = "hash",
    cluster: options.ForCluster = None,
    meta: options.Meta = False,
    device: options.OnDevice = "cpu",
    backend: options.WithBackend = None,
    optimizer: options.AnyOptimizer = "sgd",
    lr: options.LearningRate = 0.1,
    kernels: options.Kernels = EAGER,
    processes: options.Processes = None,
    timeout: options.Timeout = 600.0,
    out: options.Out = None,
    json: options.Json = False,
) -> None:
    """Train as the plan says and on a single device, and compare.

    Compares the loss and every gradient of each step, every weight and every buffer after the last. Exits with 1 and
    names the first tensor that differs, if one does.
    """
    overrides = settings(set_)
    check_kernels(kernels, device)
    check_optimizer(optimizer)
    loaded = load(plan, model, seed, generator, meta, trains=True)
    program = compiled(loaded, overrides, cluster=named_cluster(cluster), kernels=kernels)
    from ssdsl.model.run_graph import recast_model
    from ssdsl.run.verify.verify import compared_steps, difference, nothing_compared
    from ssdsl.run.verify.verify import verify as compare
    from ssdsl.runtime.options import Training
    from ssdsl.show.tables.verdict import equal_text, verdict_json, verdict_view

    training = Training(
        steps,
        seed,
        device,
        optimizer,
        lr,
        timeout_s=timeout,
        backend=backend,
        allow_nan=True,
        kernel_mode=kernels.mode,
    )
    loaded = compared(loaded)
    with workplace(out) as folder:
        result = train(loaded, program, training, folder, processes, dump=True)
        with working("training on a single device"):
            alone = recast_model(loaded.model, program.plan.recast)
            comparisons = compare(alone, training, result, folder / "program", program.program.kernels)
    wrong = difference(comparisons, loaded.graph) or nothing_compared(comparisons, loaded.model, loaded.graph)
    if compared_steps(comparisons)[0]:
        warn_of_losses(result, lr)
    if json:
        print_json(verdict_json(comparisons, program.plan.devices))
    else:
        print_views(verdict_view(comparisons))
        results.print(loaded.comparison, markup=False)
    if wrong is not None:
        show_diagnostics([wrong])
        raise typer.Exit(1)
    if not json:
        results.print(equal_text(comparisons, program.plan.devices, program.plan.recast is not None), style="green")
