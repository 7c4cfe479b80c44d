"""Chooses the number of nodes, and of processes on each, from the plan, the cluster, and the user's options."""

from ssdsl.cluster.cluster import Cluster
from ssdsl.run.errors import JobMisfit
from ssdsl.text.diagnostic import PlanError

USUAL = 8  # devices of a node, if unknown


def fit(processes: int, nodes: int | None, per_node: int | None, cluster: Cluster | None) -> tuple[int, int]:
    """Nodes, and processes on each, that make `processes`. Raises PlanError if there are none.

    >>> fit(16, None, None, None), fit(4, None, None, None), fit(12, 2, None, None)
    ((2, 8), (1, 4), (2, 6))
    """
    most = USUAL
    if cluster is not None:
        cluster.check_size(processes)
        most = processes if cluster.shares_cores else min(group.per_node for group in cluster.groups)
    if per_node is None:
        per_node = min(most, processes) if nodes is None else -(-processes // nodes)
    elif cluster is not None and per_node > most:
        raise PlanError(
            JobMisfit.of(processes, nodes, per_node, most, f"a node of `{cluster.name}` has {most} devices")
        )
    if nodes is None:
        nodes = -(-processes // per_node)
    if nodes * per_node != processes or (cluster is not None and per_node > most):
        raise PlanError(JobMisfit.of(processes, nodes, per_node, most, "each node starts equally many processes"))
    return nodes, per_node
