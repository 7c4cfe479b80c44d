"""`ssdsl compile`: writes the program of a plan, which torchrun can start where ssdsl is not installed."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.commands.clusters import named_cluster
from ssdsl.cli.options import refuse_unused, settings
from ssdsl.cli.pipeline import LoadedPlan, compiled, evaluation, load, working
from ssdsl.cli.terminal import print_text, results
from ssdsl.cli.training import write
from ssdsl.kernel_choice import DEFAULT, EAGER

if TYPE_CHECKING:
    from ssdsl.cluster.cluster import Cluster
    from ssdsl.lower.lower import After
    from ssdsl.lower.stages import Planned
    from ssdsl.workspace import Compiled

Folder = Annotated[
    str | None, typer.Option("--out", "-o", metavar="DIR", help="Output folder; an earlier program there is replaced.")
]
Outputs = Annotated[
    list[str] | None,
    typer.Option(
        "--output",
        metavar="NAME",
        help="A result of the forward that the evaluation gives beside the loss, as `logits`. Repeatable.",
        show_default=False,
    ),
]
PrintAfter = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PASS", help="Print the plan as this pass of the lowering leaves it. Repeatable.", show_default=False
    ),
]


def compile_(
    context: typer.Context,
    plan: options.Plan,
    model: options.Model,
    set_: options.Set,
    out: Folder = None,
    output: Outputs = None,
    print_after: PrintAfter = None,
    seed: options.Seed = 0,
    generator: options.WithGenerator = "hash",
    cluster: options.ForCluster = None,
    precision: options.WithPrecision = None,
    kernels: options.Kernels = EAGER,
    meta: options.Meta = False,
) -> None:
    """Write a plan's program into a folder: readable Python that runs with torchrun and torch alone."""
    if out is None and not print_after:
        raise typer.BadParameter("say where to write the program: --out DIR", param_hint="'--out'")
    if out is None:
        refuse_unused(context, dict.fromkeys(("output", "seed", "generator"), "give --out too"))
    overrides = settings(set_)
    chosen = named_cluster(cluster)
    loaded = load(plan, model, seed, generator, meta, precision, trains=True)
    program = compiled(loaded, overrides, _printer(print_after or []), chosen, kernels)
    if out is None:
        return
    put(loaded, program, out, output or (), chosen, kernels.mode)


def put(
    loaded: LoadedPlan,
    program: "Compiled",
    folder: str,
    outputs: Sequence[str],
    cluster: "Cluster | None",
    mode: str = DEFAULT,
) -> None:
    """Writes a program, and the program of its evaluation, and prints the command that starts it."""
    only_read = loaded.captured.origin and not outputs  # a graph has neither weights nor an evaluation
    evaluates = None if only_read else evaluation(loaded, program, outputs, cluster)
    with working("writing"):
        write(loaded, program, Path(folder), evaluates)
    if only_read:
        origin = loaded.captured.origin
        results.print(f"{folder}: a program to be read; compiled for --model {origin} it also runs", markup=False)
        return
    from ssdsl.runtime.health.start import command

    main = str(Path(folder) / "main.py")
    words = f"{main} --kernel-mode {mode}" if mode != DEFAULT else main
    results.print(command(program.plan.devices, words), markup=False, soft_wrap=True)


def _printer(wanted: list[str]) -> "After":
    """A function that prints the lowering after the passes of these names. Raises typer.BadParameter for an unknown
    name."""
    from ssdsl.lang.suggest import suggest
    from ssdsl.lower.lower import PASSES
    from ssdsl.lower.print_stage import stage_text
    from ssdsl.rewrite.rewrite import REWRITES

    known = [step.__name__ for step in (*REWRITES, *PASSES)]
    for name in wanted:
        if name not in known:
            hint = suggest(name, known) or "none is like it"
            raise typer.BadParameter(
                f"there is no pass `{name}`: {hint}; the passes are {', '.join(known)}", param_hint="'--print-after'"
            )

    def after(name: str, stage: "Planned") -> None:
        if name in wanted:
            print_text(f"# after {name}\n{stage_text(stage)}\n")

    return after
