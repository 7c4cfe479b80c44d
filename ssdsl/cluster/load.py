"""Loads `--cluster`: a cluster that comes with ssdsl by its name, or the user's own TOML file by its path."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from ssdsl.cluster.build import build
from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.errors import BadToml, ClusterFileUnreadable, UnknownCluster
from ssdsl.cluster.places import Places
from ssdsl.cluster.schema import FILE, FLAGS, Check, TableSchema
from ssdsl.lang.suggest import listed, suggest
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source, Span

KNOWN = Path(__file__).parent / "known"
LARGEST_BYTES = 1 << 20
SIZED = re.compile(r"([a-z0-9]+)x([1-9][0-9]{0,5})")  # the kind of device, and how many: `a100x64`
# the end of a message of tomllib, which says where the mistake is
POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def load_cluster(spec: str) -> Cluster:
    """The cluster of a name or path; `a100x64` has 64 of the devices of `a100x1024`.

    After the name, flags of its file may be set, with a comma before each: `h200x8,routes=false`. Raises PlanError with
    all mistakes.
    """
    name, *flags = spec.split(",")
    path = cluster_file(name)
    found, places = _checked(read_cluster_file(path, name), FILE)
    set_, _ = _checked(Source("--cluster", "\n".join(flags)), FLAGS)  # `routes=false` is a line of TOML
    cluster = build(path.stem, found | set_, places)
    if path.stem != name and (sized := SIZED.fullmatch(name)):
        cluster = _of_size(cluster, name, int(sized[2]))
    return replace(cluster, name=",".join((cluster.name, *flags)))


def _of_size(cluster: Cluster, name: str, size: int) -> Cluster:
    """The cluster with `size` of its devices: a part of a node, or whole nodes. Raises PlanError if these are more than
    one node, and no link between nodes is known."""
    (group,) = cluster.groups  # a name such as `a100x64` stands for one kind of device
    node, *outer = group.levels
    if size <= node.size:
        return replace(cluster, name=name, groups=(replace(group, levels=(replace(node, size=size),)),))
    if not outer:
        raise PlanError(_unknown(name, f"`{cluster.name}` is one node of {node.size}, with no link to others"))
    whole = -(-size // node.size) * node.size  # 20 devices of nodes of 8 are 3 nodes, 24 devices
    # levels of links that join fewer devices stay as they are; the outermost one joins all
    levels = (node, *(level for level in outer[:-1] if level.size < whole), replace(outer[-1], size=whole))
    return replace(cluster, name=name, groups=(replace(group, levels=levels),))


def known_clusters() -> tuple[str, ...]:
    """The names of the clusters that come with ssdsl."""
    return tuple(sorted(path.stem for path in KNOWN.glob("*.toml")))


def cluster_file(name: str) -> Path:
    """The file of a name or path. `laptop` is the user's own measurement if there is one; `v100x8` has the file of the
    cluster whose name differs only in the number of devices."""
    if name.endswith(".toml") or "/" in name or os.sep in name:
        return Path(name)
    if name not in known_clusters():
        if (sized := SIZED.fullmatch(name)) and (alike := [n for n in known_clusters() if _is_alike(n, sized[1])]):
            return KNOWN / f"{alike[0]}.toml"
        is_file = f"the file of this name is no TOML file: call it `{name}.toml`" if os.path.isfile(name) else ""
        raise PlanError(_unknown(name, is_file or suggest(name, known_clusters())))
    measured = measured_laptop()
    return measured if name == "laptop" and measured.is_file() else KNOWN / f"{name}.toml"


def _unknown(name: str, label: str) -> UnknownCluster:
    return UnknownCluster(Span(Source("--cluster", name), 0, len(name)), label, name, listed(known_clusters()))


def _is_alike(known: str, devices: str) -> bool:
    """Whether a known cluster has these devices: `a100x1024` has `a100`."""
    sized = SIZED.fullmatch(known)
    return sized is not None and sized[1] == devices


def measured_laptop() -> Path:
    """The file in which `ssdsl clusters measure` saves the measurements of this machine."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(folder if os.path.isabs(folder) else os.path.expanduser("~/.config")) / "ssdsl" / "laptop.toml"


def read_cluster_file(path: Path, name: str) -> Source:
    """The text of the file; `name` is what the user typed."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
        if len(data) > LARGEST_BYTES:
            raise ValueError(f"it is larger than {LARGEST_BYTES >> 10} KiB")
        return Source(str(path), data.decode("utf-8").replace("\r\n", "\n"))
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
    except ValueError as error:
        reason = str(error)
    span = Span(Source("--cluster", name), 0, len(name))
    raise PlanError(ClusterFileUnreadable(span, "" if os.path.exists(path) else _beside(path), str(path), reason))


def _beside(path: Path) -> str:
    """A suggestion of another .toml file in the folder; empty if none has a similar name."""
    try:
        return suggest(path.name, sorted(p.name for p in path.parent.glob("*.toml") if p != path))
    except (OSError, ValueError):
        return ""


def _checked(source: Source, table: TableSchema) -> tuple[dict[str, Any], Places]:
    """The contents of a file, and the places of its keys and values. Raises PlanError unless it has all required keys
    of the table, no unknown ones, and values of the right types."""
    try:
        found = tomllib.loads(source.text)
    except RecursionError:
        raise PlanError(BadToml(Span(source, 0, 0), "it is nested too deeply")) from None
    except ValueError as error:
        raise PlanError(_bad_toml(source, str(error))) from None
    places = Places(source)
    if wrong := list(Check(source, places).table(table, found)):
        raise PlanError(*sorted(wrong, key=lambda d: d.span.start if d.span else 0))
    return found, places


def _bad_toml(source: Source, message: str) -> BadToml:
    """The diagnostic for a message of tomllib. Its place is the line and column that the message ends with, or the end
    of the text."""
    place = POSITION.search(message)
    at = len(source.text.rstrip())
    if place is not None and place[1]:
        lines = source.text.split("\n")
        at = min(at, sum(len(line) + 1 for line in lines[: int(place[1]) - 1]) + int(place[2]) - 1)
    reason = POSITION.sub("", message)
    return BadToml(Span(source, at, at + 1), reason[:1].lower() + reason[1:])
