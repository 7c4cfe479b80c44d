"""`ssdsl show`: views of a model under a plan."""

from enum import StrEnum
from typing import Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.options import settings
from ssdsl.cli.pipeline import load, planned
from ssdsl.cli.terminal import print_json, results


class What(StrEnum):
    DIMS = "dims"
    OPS = "ops"


View = Annotated[
    What, typer.Argument(help="dims: what a plan can split by. ops: how it cuts and places each operator.")
]
Every = Annotated[bool, typer.Option("--all", help="A row for each, where repeated layers are shown as one.")]


def show(
    plan: options.Plan,
    model: options.Model,
    set_: options.Set,
    view: View = What.DIMS,
    every: Every = False,
    json: options.Json = False,
) -> None:
    """Show what a plan makes of a model."""
    overrides = settings(set_)
    loaded = load(plan, model)
    from ssdsl.show.dims import dims_view
    from ssdsl.show.operators import operators_view
    from ssdsl.show.view import as_json, table

    match view:
        case What.DIMS:
            shown = dims_view(loaded.graph, every)
        case What.OPS:
            shown = operators_view(planned(loaded, overrides), every)
    if json:
        print_json(as_json(shown))
    else:
        results.print(table(shown, results.width))
