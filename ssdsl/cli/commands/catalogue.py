"""`ssdsl models`, `ssdsl plans` and `ssdsl ops`: lists of the models, plans and operators that come with ssdsl."""

from typing import TYPE_CHECKING, Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.options import devices_of
from ssdsl.cli.pipeline import captured, working
from ssdsl.cli.terminal import print_json, print_views

if TYPE_CHECKING:
    from ssdsl.matrix.on_model import PlanOnModel


def models(json: options.Json = False) -> None:
    """List the models that come with ssdsl, in all their sizes."""
    from ssdsl.show.tables.catalogue import models_json, models_view

    if json:
        print_json(models_json())
    else:
        print_views(models_view())


For = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="MODEL",
        help="Try each plan on this model, as --model takes it: whether it proves, at which params, and what fits.",
        autocompletion=options.complete_model,
    ),
]
OnCluster = Annotated[
    str | None,
    options.cluster_option("With --for: simulate on one of `ssdsl clusters`, or a TOML file; what fits, and its step."),
]
Devices = Annotated[
    str | None,
    typer.Option(
        metavar="N|A..B",
        help="With --for: the number of devices of a plan.",
        show_default="2..8, or all of the cluster",
    ),
]


def plans(
    context: typer.Context,
    for_: For = None,
    cluster: OnCluster = None,
    devices: Devices = None,
    json: options.Json = False,
) -> None:
    """List the plans that come with ssdsl, and the functions of its standard library.

    With --for, which of them prove on a model, and at which params; exits with 1 if none does, or none fits the
    cluster.
    """
    if for_ is not None:
        _on_model(for_, cluster, devices, json)
        return
    options.refuse_unused(context, dict.fromkeys(("cluster", "devices", "no_cache"), "it is for --for MODEL"))
    from ssdsl.lang.assets import library_files
    from ssdsl.lang.shipped import shipped_plans
    from ssdsl.show.tables.catalogue import library_view, plans_json, plans_view

    if json:
        print_json(plans_json(shipped_plans(), library_files()))
        return
    print_views(plans_view(shipped_plans()), library_view(library_files()))


def _on_model(model: str, cluster: str | None, devices: str | None, json: bool) -> None:
    """Tries all plans on a model, captured once."""
    from ssdsl.cli.commands.clusters import named_cluster
    from ssdsl.matrix.on_model import plans_on_model
    from ssdsl.matrix.trials import Trials
    from ssdsl.show.tables.on_model import on_model_json, on_model_view
    from ssdsl.workspace import Workspace

    on = named_cluster(cluster)
    wanted = devices_of(devices or (str(on.size) if on is not None else "2..8"), on)
    held = captured(model)
    trials, found = Trials(model, Workspace(held.graph, on), on=on), list["PlanOnModel"]()
    tried = plans_on_model(trials, wanted)
    with working(f"trying plans on {model}"):
        found = [*tried]
    if json:
        print_json(on_model_json(model, on, wanted, found))
    else:
        print_views(on_model_view(model, on, wanted, found))
    if not any(plan.is_good for plan in found):
        raise typer.Exit(1)


def ops(
    word: Annotated[str, typer.Argument(metavar="[WORD]", help="Only operators with this word in their names.")] = "",
    json: options.Json = False,
) -> None:
    """List the operators that ssdsl knows: the dimensions that a plan can split, what merges parts, the row's file."""
    from ssdsl.show.tables.catalogue import operators_json, operators_view

    if json:
        print_json(operators_json(word))
    else:
        print_views(operators_view(word))
