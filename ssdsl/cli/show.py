"""`ssdsl show`: views of a model under a plan."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.options import settings
from ssdsl.cli.pipeline import Loaded, compiled, load, planned
from ssdsl.cli.terminal import print_json, results

if TYPE_CHECKING:
    from ssdsl.show.view import View as Table


class What(StrEnum):
    DIMS = "dims"
    OPS = "ops"
    TASKS = "tasks"
    COMM = "comm"


HELP = (
    "dims: what a plan can split by. ops: how it cuts and places each operator. tasks: what each role runs, in order. "
    "comm: the communication that follows."
)
View = Annotated[What, typer.Argument(help=HELP)]
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
    views = _views(load(plan, model), overrides, view, every)
    from ssdsl.show.view import as_json, table

    if json:
        print_json(as_json(views[0]) if len(views) == 1 else {v.title.split()[0]: as_json(v) for v in views})
        return
    for shown in views:
        results.print(table(shown, results.width))


def _views(loaded: Loaded, overrides: dict[str, int], view: What, every: bool) -> "tuple[Table, ...]":
    from ssdsl.show.communication import communication_view
    from ssdsl.show.dims import dims_view
    from ssdsl.show.operators import operators_view
    from ssdsl.show.tasks import tasks_views

    match view:
        case What.DIMS:
            return (dims_view(loaded.graph, every),)
        case What.OPS:
            return (operators_view(planned(loaded, overrides), every),)
        case What.TASKS:
            return tasks_views(compiled(loaded, overrides).schedule, every)
        case What.COMM:
            return (communication_view(compiled(loaded, overrides).schedule, every),)
