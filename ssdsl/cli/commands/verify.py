"""`ssdsl verify`: compares the plan's losses, gradients and weights with those of a single device."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.commands.clusters import named_cluster
from ssdsl.cli.options import settings
from ssdsl.cli.pipeline import LoadedPlan, compiled, load, working
from ssdsl.cli.terminal import print_json, print_views, results, show_diagnostics
from ssdsl.cli.training import check_kernels, check_optimizer, compared, train, warn_of_losses, workplace
from ssdsl.kernel_choice import EAGER
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError

if TYPE_CHECKING:
    from ssdsl.model.alter.altered import Altered
    from ssdsl.run.results import RunResult
    from ssdsl.run.verify.against import Against
    from ssdsl.run.verify.compare import Comparison
    from ssdsl.run.verify.other_program import OtherProgram
    from ssdsl.runtime.options import Training
    from ssdsl.text.diagnostic import Diagnostic
    from ssdsl.workspace import Compiled

OfOther = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="FILE",
        help="Also compare with tensors that another program saved, by name: a dict of torch.save, or .safetensors.",
    ),
]


def verify(
    context: typer.Context,
    plan: options.Plan,
    model: options.Model,
    set_: options.Set,
    against: OfOther = None,
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
    names the first tensor that differs, if one does. With --against also compares with another program, which begins
    with the weights and batches in its file; as many steps as the file has, unless --steps says otherwise.
    """
    overrides = settings(set_)
    check_kernels(kernels, device)
    check_optimizer(optimizer)
    loaded = load(plan, model, seed, generator, meta, trains=True)
    other = None
    if against is not None:
        asked = context.get_parameter_source("steps")
        loaded, other, steps = _begun(loaded, against, steps, asked is not None and asked.name == "COMMANDLINE")
    program = compiled(loaded, overrides, cluster=named_cluster(cluster), kernels=kernels)
    from ssdsl.run.verify.against import other_difference
    from ssdsl.run.verify.verify import compared_steps, difference, nothing_compared
    from ssdsl.runtime.options import Training
    from ssdsl.show.tables.verdict import (
        against_json,
        against_text,
        against_view,
        equal_text,
        verdict_json,
        verdict_view,
    )

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
        result, comparisons = _compared(loaded, program, program.plan.altered, training, folder, processes)
        wrong: Diagnostic | None = difference(comparisons, loaded.graph)
        wrong = wrong or nothing_compared(comparisons, loaded.model, loaded.graph)
        beside = None if other is None else _beside(loaded, program, training, result, other)
        also = "" if wrong is not None else _without_loss(loaded, overrides, program, training, folder, processes)
    if compared_steps(comparisons)[0]:
        warn_of_losses(result, lr)
    if json:
        verdict = verdict_json(comparisons, program.plan.devices)
        print_json(verdict if beside is None else {**verdict, "against": against_json(beside)})
    else:
        print_views(verdict_view(comparisons), *([] if beside is None else [against_view(beside)]))
        results.print(loaded.comparison, markup=False)
    unlike = None if beside is None else other_difference(beside, agrees=wrong is None)
    if found := [d for d in (wrong, unlike) if d is not None]:
        show_diagnostics(found)
        raise typer.Exit(1)
    if not json:
        results.print(f"{equal_text(comparisons, program.plan.devices, program.plan.altered)}{also}", style="green")
    if not json and beside is not None:
        results.print(against_text(beside), style="green")


def _begun(loaded: LoadedPlan, file: str, steps: int, asked: bool) -> "tuple[LoadedPlan, OtherProgram, int]":
    """The plan with the model as the other program of a file began, that program, and the number of steps: those of the
    file, unless they were `asked`. Raises PlanError."""
    from ssdsl.run.verify.against import begun_as, check_comparable
    from ssdsl.run.verify.other_program import read_other

    other = read_other(Path(file), loaded.model)
    steps = steps if asked or not other.steps else other.steps
    if other.unknown is not None:
        show_diagnostics([other.unknown])
    check_comparable(other, steps)
    built = begun_as(loaded.model, other, steps)
    return replace(loaded, captured=replace(loaded.captured, built=built, is_compared=False)), other, steps


def _beside(
    loaded: LoadedPlan, program: "Compiled", training: "Training", result: "RunResult", other: "OtherProgram"
) -> "Against":
    """The comparison of a run with another program."""
    from ssdsl.model.alter.run_graph import trained_model
    from ssdsl.run.verify.against import compare_other
    from ssdsl.run.verify.verify import dumps_of

    with working(f"comparing with {other.file}"):
        alone = trained_model(loaded.model, program.plan.altered)
        return compare_other(alone, training, result.losses, dumps_of(result), other, program.program.kernels)


def _compared(
    loaded: LoadedPlan,
    program: "Compiled",
    changes: "Altered | None",
    training: "Training",
    folder: Path,
    processes: int | None,
) -> "tuple[RunResult, tuple[Comparison, ...]]":
    """Trains as a program says, and compares with a single device that trains the model with these changes."""
    from ssdsl.model.alter.run_graph import trained_model
    from ssdsl.run.verify.verify import verify

    result = train(loaded, program, training, folder, processes, dump=True)
    with working("training on a single device"):
        alone = trained_model(loaded.model, changes)
        return result, verify(alone, training, result, folder / "program", program.program.kernels)


def _without_loss(
    loaded: LoadedPlan,
    overrides: dict[str, int],
    program: "Compiled",
    training: "Training",
    folder: Path,
    processes: int | None,
) -> str:
    """For a plan that compresses: compares it with compressions that keep all numbers, and what each part of these
    makes of the single device's numbers. Returns what is equal; raises PlanError for what differs."""
    from ssdsl.compile import compile_lossless
    from ssdsl.run.verify.codes import check_codes
    from ssdsl.run.verify.verify import difference

    changes = program.plan.altered
    if changes is None or not changes.compressed:
        return ""
    count = check_codes(loaded.model, changes.graph, program.program, training.seed)
    graph, kernels = loaded.graph, program.program.kernels
    whole = compile_lossless(loaded.source, graph, overrides, loaded.path.parent, kernels=kernels)
    others = changes.without_compression(graph)
    _, comparisons = _compared(loaded, whole, others, training, folder / "whole", processes)
    if (wrong := difference(comparisons, loaded.graph)) is not None:
        raise PlanError(wrong)
    compared = sum(c.is_compared and not c.in_float64 for c in comparisons)
    return (
        f"\nequal: {compared} tensors where compressions keep all numbers"
        f"\nequal to the bit: all parts of {count} compressing operators, given the single device's numbers"
    )
