"""The folder of kept graphs: `$XDG_CACHE_HOME/ssdsl/graphs`, by default in `~/.cache`.

An entry is a graph file (`graph_file.py`), named by the checksum of the request; its header has the sources, which are
compared when it is read. Another process may write the same entry: each file is renamed into place as a whole, and the
last one stays. An unreadable entry is made again.
"""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ssdsl.lang.assets import PACKAGE, assets_folder, cache_folder
from ssdsl.lang.save import put_whole
from ssdsl.model.cache.sources import Sources
from ssdsl.model.graph import Graph
from ssdsl.model.graph_file import BadGraphFile, NotData, read_graph, read_header, write_graph
from ssdsl.record import Record, as_dict
from ssdsl.runtime.program.codec import decoded

CHANGING = ("path", "place", "packages", "ssdsl", "python")  # not in the checksum: a new version replaces the entry
MOST = 512 << 20  # bytes of all entries; those that were used longest ago go first


class Entry(Record):
    """A kept graph: its model, the request that it answers, its file, and the time of its last use."""

    model: str
    asked: Mapping[str, Any]
    path: Path
    size_bytes: int
    used: float  # seconds since 1970


def folder() -> Path:
    """The folder in which graphs are kept. Raises RuntimeError for a user without a home."""
    return cache_folder("graphs")


Question = Mapping[str, Any]  # a request, with the versions of all code and the folder that it depends on


def question(asked: Mapping[str, Any]) -> Question:
    """A request with all that its graph depends on here and now: versions, search path and, for files, the folder."""
    found = hashlib.sha256(b"\n".join(map(os.fsencode, map(os.path.abspath, sys.path)))).hexdigest()
    is_here = any(sign in asked["spec"] for sign in ("/", ".py", "hf:"))  # else it names a model of the zoo
    place = os.path.realpath(asked["spec"]) if is_here else ""
    return {**asked, "folder": os.getcwd() if is_here else "", "place": place, "path": found, **_versions()}


def find(asked: Question) -> tuple[Graph, dict[str, Any]] | None:
    """The cached graph for a request, with its header; None if there is none, or its sources have changed."""
    try:
        path = _path(asked)
        header = read_header(path)
        if header["asked"] != asked or not decoded(Sources, header["sources"]).hold():
            return None
        found = read_graph(path)
        os.utime(path)
    except (OSError, RuntimeError, BadGraphFile, LookupError, TypeError, ValueError):
        return None
    return found


def keep(asked: Question, graph: Graph, sources: Sources, header: Mapping[str, Any]) -> str:
    """Keeps a graph; returns the reason why it must not be kept, or "". A file that cannot be written is no reason."""
    if sources.lacking:
        return f"it read {sources.lacking}"
    try:
        data = write_graph(graph, {**header, "asked": asked, "sources": as_dict(sources)})
    except NotData as error:
        return f"it has {error}"
    with contextlib.suppress(OSError, RuntimeError):
        path = _path(asked)
        path.parent.mkdir(parents=True, exist_ok=True)
        put_whole(path, data)
        _shrink()
    return ""


def entries() -> list[Entry]:
    """All entries, the most recently used first."""
    found = []
    for path in _files():
        with contextlib.suppress(OSError, BadGraphFile, LookupError, TypeError):
            header, about = read_header(path), path.stat()
            found.append(Entry(header["model"], header["asked"], path, about.st_size, about.st_mtime))
    return sorted(found, key=lambda entry: -entry.used)


def clear() -> int:
    """Removes all entries; returns their number."""
    files = list(_files())
    with contextlib.suppress(OSError, RuntimeError):
        for path in (*files, *folder().glob(".*.graph.*")):  # left by commands that were killed while they wrote
            path.unlink(missing_ok=True)
    return len(files)


def _files() -> Iterator[Path]:
    with contextlib.suppress(OSError, RuntimeError):
        yield from (path for path in folder().glob("*.graph") if path.is_file())


def _shrink() -> None:
    """Removes the entries that were used longest ago, until the rest is small enough."""
    files = sorted(((path.stat(), path) for path in _files()), key=lambda pair: -pair[0].st_mtime)
    size = 0
    for about, path in files:
        size += about.st_size
        if size > MOST:
            path.unlink(missing_ok=True)


def _path(asked: Question) -> Path:
    text = json.dumps({name: asked[name] for name in asked if name not in CHANGING}, sort_keys=True)
    return folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.graph"


@cache
def _versions() -> dict[str, str]:
    """The version of Python, those of all packages, and the times of the files of ssdsl that make graphs: a checkout
    changes without a version."""
    packages = (name for p in sys.path if os.path.isdir(p or ".") for name in os.listdir(p or "."))
    known = sorted(name for name in packages if name.endswith((".dist-info", ".egg-info")))
    folders = (PACKAGE / "model", PACKAGE / "runtime", assets_folder("examples") / "models")
    own = [(str(p), p.stat().st_mtime_ns) for folder in folders for p in sorted(folder.rglob("*.py"))]
    return {
        "python": f"{sys.version} -{'O' * sys.flags.optimize}",  # without assertions
        "packages": hashlib.sha256("\n".join(known).encode()).hexdigest(),
        "ssdsl": hashlib.sha256(repr(own).encode()).hexdigest(),
    }
