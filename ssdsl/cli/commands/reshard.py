"""`ssdsl reshard`: what travels when a plan changes between two steps of training."""

from typing import Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.commands.clusters import chosen_cluster
from ssdsl.cli.pipeline import compiled
from ssdsl.cli.terminal import print_json, print_views
from ssdsl.cli.two_plans import After, And, two_plans

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
    chosen = chosen_cluster(cluster)
    both = two_plans(before, after, model, set_, and_, meta=meta, precision=precision)
    from ssdsl.run.checkpoints.reshard import transition
    from ssdsl.show.tables.reshard import reshard_json, reshard_views

    was, now = (
        compiled(plan, own, cluster=chosen).program for plan, own in zip(both.plans, both.settings, strict=True)
    )
    found = transition(was, now, state_tensors)
    if json:
        print_json(reshard_json(found, both.names))
        return
    print_views(*reshard_views(found, chosen, both.names))
