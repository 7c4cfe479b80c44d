"""`ssdsl clusters`: the clusters for which plans can be simulated, and the measurements of this machine."""

from collections.abc import Iterable
from typing import Any

from ssdsl.cluster.cluster import Cluster, Level, NodeGroup
from ssdsl.cluster.device import CONTENTION
from ssdsl.cluster.link import Link
from ssdsl.cluster.measure import Measurement
from ssdsl.record import as_dict
from ssdsl.show.view import Column, ColumnKind, View

CLUSTERS = (
    Column("cluster", style="bold cyan"),
    Column("devices", ColumnKind.COUNT),
    Column("device", fold=True),
    Column("memory"),
    Column("level", style="green"),
    Column("bandwidth"),
    Column("latency", drop=1),
)
MEASURED = (Column("measured", style="bold cyan"), Column("value"), Column("how", fold=True))
GIB = 2**30


def clusters_view(clusters: Iterable[Cluster]) -> View:
    """A row for each group of equal nodes; the links between groups are in the row of the last group."""
    rows = tuple(
        (
            cluster.name if n == 0 else "",
            group.size,
            f"{group.device.name}\n{group.site}".strip(),
            f"{group.device.memory_bytes / GIB:.3g} GiB",
            *_links(group.levels + (cluster.levels if n == len(cluster.groups) - 1 else ())),
        )
        for cluster in clusters
        for n, group in enumerate(cluster.groups)
    )
    notes = (
        "a level joins so many devices; bandwidth is each device's share, one way",
        f"GPUs compute {CONTENTION:.0%} longer beside communication (arXiv 2507.03114), unless a file has `contention`",
        "ranks share the cores of `laptop`; `ssdsl clusters measure` measures yours",
        "`ssdsl clusters show NAME` prints the file: a template for your --cluster FILE",
    )
    return View("clusters", CLUSTERS, rows, notes)


def _links(levels: tuple[Level, ...]) -> tuple[str, str, str]:
    return (
        "\n".join(f"{level.name} {level.size}" for level in levels),
        "\n".join(bandwidth(level.link.bandwidth) for level in levels),
        "\n".join(duration(level.link.latency) for level in levels),
    )


def cluster_json(cluster: Cluster) -> dict[str, Any]:
    """A cluster as plain values, in bytes, seconds and FLOP/s."""
    return {
        "cluster": cluster.name,
        "about": cluster.about,
        "devices": cluster.size,
        "shares_cores": cluster.shares_cores,
        "overlap": as_dict(cluster.overlap),
        "groups": [_group_json(group) for group in cluster.groups],
        "levels": [_level_json(level) for level in cluster.levels],
    }


def measurement_view(found: Measurement) -> View:
    """The table of `ssdsl clusters measure`."""
    rows = (
        ("matmul float32", _rate(found.float32_flops), "1024 x 1024, one thread, other cores busy"),
        ("matmul bfloat16", _rate(found.bfloat16_flops), "the same"),
        ("memory", bandwidth(found.memory_bandwidth), "read and written: add two tensors of 64 MiB into a third"),
        ("operator", duration(found.launch_s), "add of eight numbers, forward or backward"),
        ("gloo send", bandwidth(found.send_bandwidth), "8 MiB to the other process"),
        ("gloo send latency", duration(found.send_latency_s), "one number, half of there and back"),
        ("gloo all_reduce", bandwidth(found.all_reduce_bandwidth), "8 MiB in two processes, bus bandwidth"),
        ("contention", f"{found.contention:.0%}", "a product beside all_reduces takes longer by this share"),
        ("gloo hop latency", duration(found.hop_latency_s), "half an all_reduce of one number"),
    )
    return View(f"{found.processor}, {found.cores} used", MEASURED, rows)


def bandwidth(value: float) -> str:
    """Bytes a second with three digits: 235 GB/s."""
    return f"{value / 1e9:.3g} GB/s" if value >= 1e9 else f"{value / 1e6:.3g} MB/s"


def duration(value: float) -> str:
    """A latency with three digits: 1.9 us."""
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} us"


def _rate(flops: float) -> str:
    return f"{flops / 1e9:.3g} GFLOP/s"


def _group_json(group: NodeGroup) -> dict[str, Any]:
    device = group.device
    return {
        "site": group.site,
        "nodes": group.nodes,
        "devices_per_node": group.per_node,
        "device": device.name,
        "peak_flops": dict(device.peak),
        "memory_bytes": device.memory_bytes,
        "memory_bandwidth": device.memory_bandwidth,
        "compute_efficiency": device.compute_efficiency,
        "memory_efficiency": device.memory_efficiency,
        "launch_s": device.launch_s,
        "contention": device.contention,
        "levels": [_level_json(level) for level in group.levels],
    }


def _level_json(level: Level) -> dict[str, Any]:
    return {"name": level.name, "devices": level.size, **_link_json(level.link)}


def _link_json(link: Link) -> dict[str, Any]:
    found = {"bandwidth": link.bandwidth, "latency_s": link.latency}
    sends = {"send_bandwidth": link.send_bandwidth, "send_latency_s": link.send_latency}
    return found | {name: value for name, value in sends.items() if value is not None}
