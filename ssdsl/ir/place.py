"""The place of submeshes in a cluster: results for some of them hold for others with an equal place."""

from ssdsl.cluster.cluster import Cluster
from ssdsl.ir.layout import Submesh

Place = tuple[int, tuple[tuple[int, tuple[tuple[str, int, int], ...]], ...]]


def place_of(cluster: Cluster | None, *submeshes: Submesh) -> Place:
    """The place of submeshes, as a key. The same links join the devices of submeshes with equal places: they have the
    same axes and strides, lie equally far from each other, and begin at ranks from which the cluster looks alike, as it
    does from all ranks without a cluster.

    >>> from ssdsl.plan.plan import Mesh
    >>> mesh = Mesh("gpus", (("pp", 3), ("tp", 4)), 0)
    >>> a, b, c = (Submesh(mesh, (("pp", stage),)) for stage in range(3))
    >>> place_of(None, a, b) == place_of(None, b, c), place_of(None, a, b) == place_of(None, a, c)
    (True, False)
    """
    first = submeshes[0].first
    begins = 0 if cluster is None else cluster.alike(first)
    return begins, tuple((s.first - first, s.strides) for s in submeshes)
