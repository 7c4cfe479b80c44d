"""`ssdsl reshard BEFORE AFTER`: the bytes that travel when a plan changes between two steps."""

from collections.abc import Iterator
from typing import Any

from ssdsl.cluster.cluster import Cluster
from ssdsl.run.checkpoints.reshard import Transition
from ssdsl.show.pattern import ranks
from ssdsl.show.view import Column, ColumnKind, View, size

RANKS = (
    Column("ranks", style="bold cyan"),
    Column("before", ColumnKind.BYTES),
    Column("after", ColumnKind.BYTES),
    Column("gets", ColumnKind.BYTES),
    Column("sends", ColumnKind.BYTES),
)
LINKS = (
    Column("link", style="bold cyan"),
    Column("bytes", ColumnKind.BYTES),
    Column("of a rank, at most", ColumnKind.BYTES),
    Column("takes", ColumnKind.SECONDS),
)


def reshard_views(found: Transition, cluster: Cluster, names: tuple[str, str]) -> tuple[View, ...]:
    """The ranks, those with equal figures in one row; and the links of the cluster."""
    alike: dict[tuple[int, int, int, int], list[int]] = {}
    for rank, (was, now) in enumerate(found.held):
        alike.setdefault((was, now, found.got(rank), found.given(rank)), []).append(rank)
    rows = tuple((ranks(tuple(those)), *figures) for figures, those in alike.items())
    notes = (
        "weights, buffers and the optimizer's state; a rank keeps what it has, and gets each other element once",
        f"at most {size(max(was + now for was, now in found.held))} of a rank are there at once: before and after",
        f"proved: each of {found.elements:,} elements comes from exactly one place",
    )
    links = tuple(_links(found, cluster))
    return (
        View(f"from {names[0]} to {names[1]}: {size(found.size_bytes)} travel", RANKS, rows, notes),
        View("links", LINKS, links, () if links else ("nothing travels",)),
    )


def _links(found: Transition, cluster: Cluster) -> Iterator[tuple[str, int, int, float]]:
    """Yields for each level of links the bytes over it, the most that one rank gets or sends over it, and how long its
    link carries them."""
    levels: dict[str, dict[tuple[int, int], int]] = {}
    for (of, to), size_bytes in found.sent.items():
        levels.setdefault(cluster.level((of, to)), {})[of, to] = size_bytes
    for level, sent in levels.items():
        ends = {rank for pair in sent for rank in pair}
        most = max(
            max(
                sum(n for (of, _), n in sent.items() if of == rank), sum(n for (_, to), n in sent.items() if to == rank)
            )
            for rank in ends
        )
        link = min((cluster.link(pair) for pair in sent), key=lambda link: link.bandwidth)
        yield level, sum(sent.values()), most, most / link.bandwidth


def reshard_json(found: Transition, names: tuple[str, str]) -> dict[str, Any]:
    """The figures as JSON."""
    return {
        "version": 1,
        "before": names[0],
        "after": names[1],
        "bytes": found.size_bytes,
        "elements": found.elements,
        "ranks": [
            {"before_bytes": was, "after_bytes": now, "gets_bytes": found.got(rank), "sends_bytes": found.given(rank)}
            for rank, (was, now) in enumerate(found.held)
        ],
        "sent": [{"from": of, "to": to, "bytes": n} for (of, to), n in sorted(found.sent.items())],
    }
