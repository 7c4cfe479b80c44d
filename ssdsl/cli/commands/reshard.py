"""`ssdsl reshard`: what travels when a plan changes between two steps of training."""

from typing import Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.commands.clusters import chosen_cluster
from ssdsl.cli.commands.diff import After, And, known_settings, names_of, of_same_model
from ssdsl.cli.options import settings
from ssdsl.cli.pipeline import compiled, load
from ssdsl.cli.terminal import print_json, print_views

StateTensors = Annotated[
    int,
    typer.Option(
        "--state-tensors", min=0, max=16, help="Tensors of the optimizer's state for each weight: AdamW has 2."
    ),
]


def reshard(
    before: options.Plan,
    model: options.Model,
    set_: options.Set,
    and_: And,
    after: After = None,
    cluster: options.Cluster = "laptop",
    precision: options.WithPrecision = None,
    state_tensors: StateTensors = 2,
    meta: options.Meta = False,
    json: options.Json = False,
) -> None:
    """What travels between ranks when training goes on under another plan, as `engine.replan` does between two steps.

    A param that only one of them has is set for that one.
    """
    overrides, later = settings(set_), settings(and_, "--and")
    if after is None and not later:
        raise typer.BadParameter("name a second plan, or its settings, as in --and T=4", param_hint="'AFTER'")
    chosen = chosen_cluster(cluster)
    first = load(before, model, meta=meta, precision=precision)
    second = of_same_model(first, after or before)
    from ssdsl.run.reshard import transition
    from ssdsl.show.tables.reshard import reshard_json, reshard_views

    was = compiled(first, known_settings(first, overrides, first, second), cluster=chosen)
    now = compiled(second, {**known_settings(second, overrides, first, second), **later}, cluster=chosen)
    found = transition(was.program, now.program, state_tensors)
    names = (before, after) if after is not None else names_of(first, overrides, later)
    if json:
        print_json(reshard_json(found, names))
        return
    print_views(*reshard_views(found, chosen, names))
