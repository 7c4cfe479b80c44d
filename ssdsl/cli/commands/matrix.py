"""`ssdsl matrix`: plans under settings, on models: which are proved, which train as one device does, which are
refused."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.commands.clusters import named_cluster
from ssdsl.cli.commands.sweep import MOST, numbers_of, too_many
from ssdsl.cli.options import refuse_unused
from ssdsl.cli.pipeline import captured, parsed, working
from ssdsl.cli.terminal import print_json, print_views, show_diagnostics, talk
from ssdsl.cli.training import check_kernels, check_numbers, check_optimizer, check_sparse, compared_model
from ssdsl.kernel_choice import EAGER, KernelChoice
from ssdsl.text.diagnostic import PlanError

if TYPE_CHECKING:
    from ssdsl.cluster.cluster import Cluster
    from ssdsl.matrix.cell import Cell, PlanText
    from ssdsl.matrix.trials import Trials
    from ssdsl.runtime.options import Training

Plans = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PLAN]...",
        help="Files, or names of `ssdsl plans`. Without, all that come with ssdsl but those of papers.",
        autocompletion=options.complete_plan,
        show_default=False,
    ),
]
Models = Annotated[
    list[str],
    typer.Option(
        "--model",
        "-m",
        metavar="NAME[:SIZE]",
        help="As `ssdsl check --model` takes it. Repeatable: each with every plan.",
        autocompletion=options.complete_model,
        show_default=False,
    ),
]
Values = Annotated[
    list[str],
    options.numbers_option(
        "--set",
        "-s",
        "NAME=N,...",
        "Values of a param to try, as in --set T=1,2, in the plans that have it. Repeatable: every value with every "
        "other. Other params take those that stand in the plan: `param T = 2 in [1, 2, 4]`.",
    ),
]
Verify = Annotated[
    bool,
    typer.Option("--verify", help="Also train, with all ranks as threads of this process, and on a single device."),
]
Steps = Annotated[int, typer.Option(min=1, help="Training steps, with --verify.")]


def matrix(
    context: typer.Context,
    model: Models,
    set_: Values,
    plans: Plans = None,
    verify: Verify = False,
    steps: Steps = 2,
    seed: options.Seed = 0,
    optimizer: options.AnyOptimizer = "sgd",
    lr: options.LearningRate = 0.1,
    cluster: options.ForCluster = None,
    kernels: options.Kernels = EAGER,
    json: options.Json = False,
) -> None:
    """Try plans under settings, on models: which are proved, and with --verify, which train as one device does.

    What is refused is a row with its code; that is fine. Exits with 1 if a row is wrong, or crashes.
    """
    if not verify:
        why = "it is for --verify"
        refuse_unused(context, {"steps": why, "optimizer": why, "lr": why})
    check_optimizer(optimizer)
    chosen = _chosen(plans or [], numbers_of(set_))
    from ssdsl.runtime.options import Training
    from ssdsl.show.tables.matrix import matrix_json, matrix_view

    if verify:
        check_kernels(kernels, "cpu")
    training = Training(steps, seed, "cpu", optimizer, lr, allow_nan=True) if verify else None
    on, cells = named_cluster(cluster), list["Cell"]()
    for name in dict.fromkeys(model):
        trials = _trials(name, seed, training, on, kernels)
        cells += _tried(trials, chosen)
    found = tuple(cells)
    if json:
        print_json(matrix_json(found))
    else:
        print_views(matrix_view(found))
    for cell in found:
        if cell.is_failure:
            _say(cell)
    if any(cell.is_failure for cell in found):
        raise typer.Exit(1)


def _chosen(names: list[str], asked: dict[str, tuple[int, ...]]) -> "list[tuple[PlanText, dict[str, int]]]":
    """The plans with their settings, in order. Raises PlanError for a param that no plan has, typer.BadParameter for
    too many settings."""
    from ssdsl.matrix.settings import plan_texts, settings_of
    from ssdsl.sketch.sketch import unknown_params

    texts = plan_texts([(name, *parsed(name)) for name in names])
    if wrong := unknown_params(asked, [text.script for text in texts]):
        raise PlanError(*wrong)
    found = list(islice(((text, setting) for text in texts for setting in settings_of(text, asked)), MOST + 1))
    if len(found) > MOST:
        raise too_many()
    return found


def _trials(
    name: str, seed: int, training: "Training | None", cluster: "Cluster | None", kernels: KernelChoice
) -> "Trials":
    """A model on which plans are tried. Raises PlanError for one that cannot train where it has to."""
    from ssdsl.matrix.trials import Trials
    from ssdsl.workspace import Workspace

    held = captured(name, seed, trains=training is not None)
    workspace = Workspace(held.graph, cluster, kernels.kernels)
    if training is None:
        return Trials(name, workspace)
    from ssdsl.run.verify.in_threads import VerifierInThreads

    held = compared_model(held)
    check_numbers(held.model)
    check_sparse(held.graph, training)
    return Trials(name, workspace, VerifierInThreads(held.model, held.graph, training, kernels.kernels))


def _tried(trials: "Trials", chosen: "list[tuple[PlanText, dict[str, int]]]") -> "Iterator[Cell]":
    for number, (plan, params) in enumerate(chosen, 1):
        words = " ".join(f"{name}={value}" for name, value in params.items())
        with working(f"{number} of {len(chosen)} on {trials.name}: {plan.name} {words}"):
            yield trials.cell(plan, params)


def _say(cell: "Cell") -> None:
    """Shows on stderr what is wrong with a cell."""
    if cell.reason is not None:
        show_diagnostics([cell.reason])
    if cell.fault:
        words = " ".join(word for word in (cell.plan, cell.words, "on", cell.model) if word)
        talk.print(f"{words}: a bug of ssdsl: report it with the plan and the model", markup=False, soft_wrap=True)
        talk.print(cell.fault, markup=False, soft_wrap=True)
