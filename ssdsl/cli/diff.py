"""`ssdsl diff`: what changes from one plan to another in time, memory and bytes."""

from typing import TYPE_CHECKING, Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.names import complete_plan
from ssdsl.cli.options import settings
from ssdsl.cli.pipeline import Loaded, compiled, load, parsed, simulated
from ssdsl.cli.terminal import print_json, results

if TYPE_CHECKING:
    from ssdsl.text.source import Source

After = Annotated[
    str, typer.Argument(metavar="AFTER", help="The plan to compare it with.", autocompletion=complete_plan)
]


def diff(
    before: options.Plan,
    after: After,
    model: options.Model,
    set_: options.Set,
    cluster: options.Cluster = "laptop",
    meta: options.Meta = False,
    json: options.Json = False,
) -> None:
    """Compare two plans for a model on a cluster: step time, bubble, memory, traffic.

    A param that only one of them has is set for that one.
    """
    overrides = settings(set_)
    first = load(before, model, meta=meta)
    second = _of_same_model(first, after)
    from ssdsl.show.difference import difference_json, difference_views
    from ssdsl.show.view import table

    was, now = (simulated(compiled(x, _known(x, overrides, first, second)), cluster) for x in (first, second))
    names = (before, after)
    if json:
        print_json(difference_json(was, now, names))
        return
    for view in difference_views(was, now, names):
        results.print(table(view, results.width))


def _of_same_model(loaded: Loaded, plan: str) -> Loaded:
    return Loaded(*parsed(plan), loaded.model, loaded.graph)


def _known(loaded: Loaded, overrides: dict[str, int], *both: Loaded) -> dict[str, int]:
    """The settings of a plan: all but those that only the other one has."""
    mine = _params(loaded.source)
    other = {name for one in both for name in _params(one.source)} - mine
    return {name: value for name, value in overrides.items() if name not in other}


def _params(source: "Source") -> set[str]:
    from ssdsl.lang import nodes
    from ssdsl.lang.parse import parse

    return {s.name.text for s in parse(source).statements if isinstance(s, nodes.Param)}
