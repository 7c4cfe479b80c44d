"""One tensor between two meshes, beside the bound of the busiest link.

The cases are those of Zhuang et al. 2023 (arXiv 2211.05322), on hosts of four V100 with 10 Gb/s between hosts, at 1/64
of the paper's 1024 x 1024 x 512 numbers: latencies are small beside both. A step is the tensor's way and its gradient's
way back. The bound is what the adapter of a host has to send or receive at least: each host gets all that its devices
need.
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path

from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_source
from ssdsl.model.graph import Graph
from ssdsl.record import replace
from ssdsl.simulate.simulate import simulate
from ssdsl.text.source import Source
from tests.captured import graph_of

HOSTS = load_cluster(str(Path(__file__).parent / "hosts.toml"))
ADAPTER = 1.25e9  # bytes a second
Cuts = dict[str, str]  # by dimension the axes that cut it: `h` of hosts, `d` of the devices of a host


@dataclass(frozen=True)
class End:
    """One side of a case: numbers of hosts and of devices on each, and what is cut."""

    hosts: int
    devices: int
    cuts: Cuts

    @property
    def of_host(self) -> float:
        """The share of the tensor that the devices of a host have together."""
        return 1 / self.hosts if any("h" in axes for axes in self.cuts.values()) else 1.0


CASES = {
    "1": (End(2, 4, {"i": "h"}), End(2, 4, {"i": "h"})),
    "2": (End(2, 4, {}), End(2, 4, {"i": "h"})),
    "3": (End(2, 4, {"j": "h"}), End(2, 4, {"i": "h"})),
    "4": (End(2, 4, {"j": "hd"}), End(2, 4, {"i": "hd"})),
    "5": (End(2, 4, {"i": "d"}), End(2, 4, {"i": "h"})),
    "6": (End(2, 4, {"i": "h"}), End(3, 4, {"i": "h"})),
    "7, 8": (End(1, 4, {"i": "d"}), End(2, 4, {})),
    "9": (End(2, 4, {"j": "h"}), End(2, 4, {"k": "h"})),
}


def plan_of(source: End, target: End) -> str:
    """The plan of a case: module `b` on the second mesh, all else on the first."""
    lines = [
        f"mesh first(h0 = {source.hosts}, d0 = {source.devices})",
        f"mesh second(h1 = {target.hosts}, d1 = {target.devices})",
        'let b = model["b"]',
        "let a = model - b",
    ]
    for name, end, side in (("a", source, 0), ("b", target, 1)):
        lines += [f"split {name} by {dim} into {axis}{side}" for dim, axes in end.cuts.items() for axis in axes]
    return "\n".join([*lines, "assign a to first", "assign b to second"])


def bound_s(source: End, target: End, size_bytes: int) -> float:
    """The seconds that the busiest adapter needs at least, there and back."""
    ways = ((source, target), (target, source))
    return sum(max(there.of_host, 1 / here.hosts) for here, there in ways) * size_bytes / ADAPTER


def of_bound(name: str) -> tuple[float, float]:
    """The simulated step of a case over its bound: routed, and as tensors lie."""
    text, least = plan_of(*CASES[name]), _least_s(name)
    routed, plain = (_step_s(_graph(name), text, replace(HOSTS, routes=on)) for on in (True, False))
    return routed / least, plain / least


def _least_s(name: str) -> float:
    (tensor,) = (value for value in _graph(name).values.values() if value.name == "x")
    return bound_s(*CASES[name], tensor.itemsize * prod(tensor.shape))


def _graph(name: str) -> Graph:
    return graph_of(f"cube.py:{'wide' if CASES[name][1].hosts == 3 else 'cube'}")  # a third of the one is whole


def _step_s(graph: Graph, text: str, cluster: Cluster) -> float:
    source = Source("case.ssp", text)
    return simulate(compile_source(source, graph, {}, None, cluster).program, source, cluster).step_s
