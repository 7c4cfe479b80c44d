"""Submeshes in like places have the same links."""

import random

import pytest

from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.load import load_cluster
from ssdsl.ir.layout import Submesh
from ssdsl.ir.place import place_of
from ssdsl.plan.plan import Mesh

CLUSTERS = "a100x64", "p3x64", "two_sites", "laptop"


def mesh_on(cluster: Cluster, draw: random.Random) -> Mesh:
    """A mesh of an outer axis of stages and two inner ones, anywhere on the cluster."""
    inner = draw.choice([(1, 2), (2, 1), (2, 2), (1, 8), (3, 2), (2, 4)])
    size = max(cluster.size, 32)  # any number of processes runs on one machine
    stages = draw.randint(3, min(8, size // (inner[0] * inner[1])))
    first = draw.randint(0, size - stages * inner[0] * inner[1])
    return Mesh("gpus", (("pp", stages), ("dp", inner[0]), ("tp", inner[1])), first)


def seconds(cluster: Cluster, source: Submesh, target: Submesh) -> object:
    """How long all devices of one submesh take to send to all of another, and rings along the axes of both."""
    exchange = cluster.exchange([((s, t), 1e6) for s in source.ranks() for t in target.ranks()])
    rings = [cluster.ring(group) for mesh in (source, target) for a, _ in mesh.axes for group in mesh.groups((a,))]
    return exchange, rings


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_links_of_like_places_are_the_same(name: str) -> None:
    cluster, alike = load_cluster(name), 0  # of how many places something was known
    for seed in range(40):
        draw = random.Random(seed)
        mesh = mesh_on(cluster, draw)
        found: dict[object, object] = {}
        for stage in range(dict(mesh.axes)["pp"] - 1):
            source, target = (Submesh(mesh, (("pp", s),)) for s in (stage, stage + 1))
            place, said = place_of(cluster, source, target), seconds(cluster, source, target)
            alike += place in found
            assert found.setdefault(place, said) == said, (mesh, stage)
    assert alike > 40 or name == "two_sites"


def test_groups_of_unlike_nodes_have_no_like_places() -> None:
    assert load_cluster("a100x64").alike(9) == 1
    assert load_cluster("two_sites").alike(9) == 9
