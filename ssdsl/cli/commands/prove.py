"""`ssdsl prove`: proves that the compiled program computes what a single device computes, without running it."""

from ssdsl.cli import options
from ssdsl.cli.commands.clusters import named_cluster
from ssdsl.cli.options import settings
from ssdsl.cli.pipeline import compiled, load
from ssdsl.cli.terminal import print_json, results
from ssdsl.record import as_dict


def prove(
    plan: options.Plan,
    model: options.Model,
    set_: options.Set,
    cluster: options.ForCluster = None,
    precision: options.WithPrecision = None,
    meta: options.Meta = False,
    json: options.Json = False,
) -> None:
    """Prove that the program of a plan computes what a single device computes, without running it.

    Derives the part of the model that each local tensor is, forward and backward, and checks every instruction, every
    sum of gradients, every message and the order on every device. Exits with 1 and shows what could not be proved.
    """
    overrides = settings(set_)
    proof = compiled(load(plan, model, meta=meta, precision=precision), overrides, cluster=named_cluster(cluster)).proof
    if json:
        print_json({k: v for k, v in as_dict(proof).items() if k != "failures"})
    else:
        results.print(str(proof), style="green")
