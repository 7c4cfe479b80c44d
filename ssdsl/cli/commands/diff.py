"""`ssdsl diff`: the changes from one plan to another in time, memory and bytes."""

from ssdsl.cli import options
from ssdsl.cli.commands.clusters import chosen_cluster
from ssdsl.cli.pipeline import compiled, simulated, state_of
from ssdsl.cli.terminal import print_json, print_views
from ssdsl.cli.two_plans import After, And, two_plans
from ssdsl.kernel_choice import EAGER


def diff(
    before: options.Plan,
    model: options.Model,
    set_: options.Set,
    and_: And,
    after: After = None,
    cluster: options.Cluster = "laptop",
    precision: options.WithPrecision = None,
    kernels: options.SimulatedKernels = EAGER,
    master_weights: options.Masters = True,
    fp32_grads: options.Fp32Grads = False,
    meta: options.Meta = False,
    json: options.Json = False,
) -> None:
    """Compare two plans for a model on a cluster, or one plan under two settings: step time, bubble, memory, traffic.

    A param that only one of them has is set for that one.
    """
    chosen = chosen_cluster(cluster)
    both = two_plans(before, after, model, set_, and_, meta=meta, precision=precision)
    from ssdsl.show.tables.difference import difference_json, difference_views

    programs = [
        compiled(plan, own, cluster=chosen, kernels=kernels)
        for plan, own in zip(both.plans, both.settings, strict=True)
    ]
    was, now = (simulated(program, chosen, state=state_of(master_weights, fp32_grads)) for program in programs)
    if json:
        print_json(difference_json(was, now, both.names))
        return
    print_views(*difference_views(was, now, both.names))
