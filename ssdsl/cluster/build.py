"""Builds a Cluster from the contents of its file: units become bytes and seconds, names become devices, and levels must
nest."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from ssdsl.cluster.cluster import Cluster, Level, NodeGroup, Price, StepError
from ssdsl.cluster.device import CONTENTION, Device, Host, Overlap
from ssdsl.cluster.errors import BadLevels, MissingKey, UnknownDevice
from ssdsl.cluster.link import Link
from ssdsl.cluster.places import Path, Places
from ssdsl.cluster.schema import shown
from ssdsl.lang.suggest import listed, suggest
from ssdsl.text.diagnostic import Diagnostic, PlanError

GIB, GB, TERA, MICRO = 2**30, 1e9, 1e12, 1e-6


def build(name: str, found: dict[str, Any], places: Places) -> Cluster:
    """The cluster that a checked file describes. Raises PlanError if its parts do not fit."""
    contention = 0.0 if found.get("shares_cores", False) else CONTENTION
    devices = {key: _device({"contention": contention, **table}) for key, table in found["devices"].items()}
    wrong = [*_unknown_devices(found, devices, places), *_unsized(found, places)]
    if wrong:
        raise PlanError(*wrong)
    groups = tuple(_group(table, devices, found.get("price", {})) for table in found["nodes"])
    levels = _levels(found.get("levels", []), sum(group.size for group in groups))
    stack = found.get("shares_cores", False), Overlap(**found.get("overlap", {}))
    error = StepError(**found["error"]) if "error" in found else None
    price = _price(found["price"]) if "price" in found else None
    cluster = Cluster(name, found["about"], groups, levels, *stack, error, found.get("routes", True), price)
    if wrong := list(_misfits(cluster, found, places)):
        raise PlanError(*wrong)
    return cluster


def _device(table: dict[str, Any]) -> Device:
    return Device(
        name=table["name"],
        peak=tuple((dtype, tflops * TERA) for dtype, tflops in table["peak_tflops"].items()),
        memory_bytes=round(table["memory_gib"] * GIB),
        memory_bandwidth=table["memory_bandwidth_gb_s"] * GB,
        compute_efficiency=float(table["compute_efficiency"]),
        memory_efficiency=float(table["memory_efficiency"]),
        launch_s=table["launch_us"] * MICRO,
        processors=table.get("processors", 1),
        attention_efficiency=table.get("attention_efficiency"),
        tile_s=table.get("tile_us", 0.0) * MICRO,
        contention=float(table["contention"]),
    )


def _group(table: dict[str, Any], devices: dict[str, Device], price: dict[str, Any]) -> NodeGroup:
    levels = _levels(table["levels"], table["count"] * table["devices"], first=table["devices"])
    host = _host(table["host"]) if "host" in table else None
    hour = table.get("device_hour", price.get("device_hour", 0.0))
    return NodeGroup(devices[table["device"]], levels, table.get("site", ""), host, float(hour))


def _price(table: dict[str, Any]) -> Price:
    return Price(table.get("currency", "USD"), float(table.get("gb_between_sites", 0.0)), table["source"])


def _host(table: dict[str, Any]) -> Host:
    return Host(
        memory_bytes=round(table["memory_gib"] * GIB),
        memory_bandwidth=table["memory_bandwidth_gb_s"] * GB,
        link_bandwidth=table["bandwidth_gb_s"] * GB,
        latency=table.get("latency_us", 0.0) * MICRO,
    )


def _levels(tables: list[dict[str, Any]], whole: int, first: int | None = None) -> tuple[Level, ...]:
    """The levels of a list of tables. Without `devices`, the first level of nodes is one node, and the last level is
    the whole."""
    sizes = [table.get("devices", whole) for table in tables]
    if first is not None and "devices" not in tables[0]:
        sizes[0] = first
    return tuple(Level(table["name"], size, _link(table)) for table, size in zip(tables, sizes, strict=True))


def _link(table: dict[str, Any]) -> Link:
    send, wait = table.get("send_bandwidth_gb_s"), table.get("send_latency_us")
    alone = table.get("alone_bandwidth_gb_s")
    return Link(
        table["name"],
        table["bandwidth_gb_s"] * GB,
        table["latency_us"] * MICRO,
        send_bandwidth=None if send is None else send * GB,
        send_latency=None if wait is None else wait * MICRO,
        alone_bandwidth=None if alone is None else alone * GB,
    )


def _unknown_devices(found: dict[str, Any], devices: dict[str, Device], places: Places) -> Iterator[Diagnostic]:
    for n, table in enumerate(found["nodes"]):
        if (name := table["device"]) not in devices:
            span = places.value(("nodes", n, "device"))
            yield UnknownDevice(span, suggest(name, devices), name, listed(devices))


def _unsized(found: dict[str, Any], places: Places) -> Iterator[Diagnostic]:
    """The levels that lack `devices`, which only the first level of nodes and the last level may leave out."""
    lists: list[tuple[Path, list[dict[str, Any]], int]] = [(("levels",), found.get("levels", []), 0)]
    lists += [(("nodes", n, "levels"), table["levels"], 1) for n, table in enumerate(found["nodes"])]
    for path, tables, start in lists:
        for n in range(start, len(tables) - 1):
            if "devices" not in tables[n]:
                yield MissingKey(
                    places.key((*path, n)), shown((*path, n)), "devices", "`devices = 64`: how many it joins"
                )


def _misfits(cluster: Cluster, found: dict[str, Any], places: Places) -> Iterator[Diagnostic]:
    for n, (group, table) in enumerate(zip(cluster.groups, found["nodes"], strict=True)):
        path: Path = ("nodes", n, "levels")
        whole = table["count"] * table["devices"]
        if group.per_node != table["devices"]:
            fact = f"the first level joins {group.per_node} devices, and a node has {table['devices']}"
            yield BadLevels(
                places.value((*path, 0, "devices")), fact, "the first level of [[nodes]] is the node itself"
            )
        yield from _unnested(group.levels, whole, path, places)
    if len(cluster.groups) > 1 and not cluster.levels:
        fact = f"nothing joins the {len(cluster.groups)} groups of nodes"
        yield BadLevels(
            places.key(("nodes", 1)), fact, "add a table [[levels]] with name, bandwidth_gb_s and latency_us"
        )
    if len(cluster.groups) == 1 and cluster.levels:
        change = "join the nodes of one group by [[nodes.levels]]"
        yield BadLevels(places.key(("levels", 0)), "[[levels]] joins groups of nodes, and there is one", change)
    elif cluster.levels:
        yield from _unnested(cluster.levels, cluster.size, ("levels",), places)
        yield from _cut(cluster, places)
    if cluster.shares_cores and (len(cluster.groups) > 1 or cluster.groups[0].nodes > 1):
        change = "with shares_cores there is one table [[nodes]], with count = 1"
        yield BadLevels(places.key(("shares_cores",)), "only the cores of one machine can be shared", change)


def _unnested(levels: tuple[Level, ...], whole: int, path: Path, places: Places) -> Iterator[Diagnostic]:
    for n, (inner, outer) in enumerate(pairwise(levels), start=1):
        if outer.size % inner.size or outer.size == inner.size:
            fact = (
                f"`{outer.name}` joins {outer.size} devices, which is no multiple of the {inner.size} of `{inner.name}`"
            )
            change = f"choose a multiple, such as {2 * inner.size}"
            if outer.size == inner.size:
                fact, change = f"`{outer.name}` joins no more devices than `{inner.name}`", "remove one of the two"
            yield BadLevels(places.value((*path, n, "devices")), fact, change)
    if levels[-1].size != whole:
        fact = f"the last level, `{levels[-1].name}`, joins {levels[-1].size} devices of {whole}"
        change = f"write `devices = {whole}`, or add a level that joins them all"
        yield BadLevels(places.value((*path, len(levels) - 1, "devices")), fact, change)


def _cut(cluster: Cluster, places: Places) -> Iterator[Diagnostic]:
    """The levels between groups that end inside a group."""
    for n, level in enumerate(cluster.levels[:-1]):
        start = 0
        for group in cluster.groups:
            if start // level.size != (start + group.size - 1) // level.size:
                fact = f"`{level.name}` ends every {level.size} devices, inside a group of {group.size}"
                span = places.value(("levels", n, "devices"))
                yield BadLevels(span, fact, "let it end where groups do, or reorder the groups")
                break
            start += group.size
