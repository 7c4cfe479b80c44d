"""Writes and reads files of captured graphs. Another process or machine needs neither torch nor the model to read one.

The file is a zip archive of three members:

- `header.json`: `{"format": "ssdsl graph", "version": 2, "fields": {"Dim": ["name", ...], ...}, "checksum": ...}` and
  what the writer adds, such as the model's name. A file whose classes have other `fields` than today's is refused, and
  one that has another `checksum`;
- `graph.json`: a list of nodes, each of which names nodes before it by their numbers; the last is the graph;
- `constants`: the bytes of stored tensors, end to end.

A node is one of these. Equal things are one node.

- null, a boolean, a number or a text, which stand for themselves;
- a list of a word and of numbers of nodes: `["tuple", 3, 4]`, `["dict", key, value, ...]`, `["set", ...]`, `["complex",
  real, imaginary]`, or a class and its fields in order, `["Dim", 7, 12, ...]`;
- `["bytes", start, end]`, positions in `constants`;
- `["row", name]`, a row of ssdsl's own table of operators. Any other row is a node of its class `Op` without the fields
  `dims`, `flops` and `mean`, which are used at capture only.

Unlike with pickle, nothing in a file is executed: a word names one of `CLASSES` or `ENUMS`, or is refused.
"""

import hashlib
import io
import json
import math
import sys
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ssdsl.identity import ByIdentity
from ssdsl.model.constant import Constant
from ssdsl.model.dims.window import Sliding
from ssdsl.model.graph import Graph
from ssdsl.model.memory.observed import Observed
from ssdsl.model.memory.storage import Storage
from ssdsl.model.ops.op import Op, PartKernel, resolved
from ssdsl.model.ops.rows import ROWS
from ssdsl.model.target import Target
from ssdsl.record import Record, field_names
from ssdsl.runtime.program.returned import Leaf

FORMAT, VERSION = "ssdsl graph", 2
PARTS = (Graph, Target, Constant, Observed, Storage, Sliding, Op, Leaf)
DEFINED = [  # the modules of these classes define all that a graph is made of
    item
    for part in PARTS
    for item in vars(sys.modules[part.__module__]).values()
    if isinstance(item, type) and item.__module__ == part.__module__
]
CLASSES: dict[str, type[Any]] = {c.__name__: c for c in DEFINED if issubclass(c, Record) or is_dataclass(c)}
ENUMS: dict[str, type[StrEnum]] = {c.__name__: c for c in DEFINED if issubclass(c, StrEnum)}
FIELDS = {c: field_names(c) for c in CLASSES.values()}
OF_ROWS = tuple(name for name in FIELDS[Op] if name not in ("dims", "flops", "mean"))
WRITTEN = {c.__name__: [*(OF_ROWS if c is Op else names)] for c, names in FIELDS.items()}


DAMAGED = (  # exceptions that reading a damaged archive, or a list of anything, may raise
    *(zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, RuntimeError),
    *(ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError, MemoryError),
)


class NotData(Exception):
    """A graph has something that no file can hold, such as a user's function; the message says what."""


class BadGraphFile(Exception):
    """A file is no graph, or this version cannot read it; the message says why."""


def write_graph(graph: Graph, header: Mapping[str, Any]) -> bytes:
    """The bytes of a graph's file; raises NotData. `header` is anything that JSON can express."""
    writer = _Writer()
    writer.node(graph)
    nodes, constants = json.dumps(writer.nodes, separators=(",", ":")).encode(), b"".join(writer.constants)
    about = {"format": FORMAT, "version": VERSION, "fields": WRITTEN, **header}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=3) as archive:
        archive.writestr("header.json", json.dumps({**about, "checksum": _checksum(about, nodes, constants)}))
        archive.writestr("graph.json", nodes)
        archive.writestr("constants", constants)
    return file.getvalue()


def read_header(path: Path) -> dict[str, Any]:
    """The header of a file; raises BadGraphFile, and OSError if there is no file."""
    with _opened(path) as archive:
        return _header(archive)


def read_graph(path: Path) -> tuple[Graph, dict[str, Any]]:
    """The graph in a file, and its header; raises BadGraphFile, and OSError if there is no file."""
    with _opened(path) as archive:
        header = _header(archive)
        try:
            nodes, constants = archive.read("graph.json"), archive.read("constants")
            seen = _checksum(header, nodes, constants)
            if header.get("checksum", seen) != seen:  # earlier versions wrote none
                raise BadGraphFile("it was changed after `ssdsl capture` had written it")
            graph = _read(json.loads(nodes), constants)
        except DAMAGED as error:
            raise BadGraphFile(f"it is damaged ({type(error).__name__}: {error})") from error
    if not isinstance(graph, Graph):
        raise BadGraphFile("what it holds is no graph")
    return graph, header


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
        raise BadGraphFile("it is no file that `ssdsl capture` has written") from error


def _checksum(header: Mapping[str, Any], nodes: bytes, constants: bytes) -> str:
    """The checksum of the other members, and of what the header has beside it."""
    about = json.dumps([len(nodes), *(pair for pair in header.items() if pair[0] != "checksum")])
    found = hashlib.sha256(about.encode())
    found.update(nodes)
    found.update(constants)
    return found.hexdigest()


def _header(archive: zipfile.ZipFile) -> dict[str, Any]:
    try:
        header = json.loads(archive.read("header.json"))
    except DAMAGED as error:
        raise BadGraphFile("it is no file that `ssdsl capture` has written") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise BadGraphFile("it is no file that `ssdsl capture` has written")
    if header.get("version") != VERSION:
        raise BadGraphFile(f"it is of version {header.get('version')}, and this ssdsl reads version {VERSION}")
    if header.get("fields") != WRITTEN:
        raise BadGraphFile("it was captured by another version of ssdsl")
    return header


class _Writer:
    """Turns a graph into a list of nodes, one for each distinct thing."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[bytes] = []
        self.size = 0
        self.known: dict[Any, int] = {}
        self.by_identity = ByIdentity[Any, int]()

    def node(self, item: Any) -> int:
        """The number of a thing's node, which is added after those of its parts unless an equal thing has one."""
        if (found := self.by_identity.get(item)) is not None:
            return found
        shown = self._shown(item)
        key = tuple(shown) if isinstance(shown, list) else (type(item), repr(item))
        number = self.known.get(key)
        if number is None:
            number = self.known[key] = len(self.nodes)
            self.nodes.append(shown)
        self.by_identity[item] = number
        return number

    def _shown(self, item: Any) -> Any:
        match item:
            case StrEnum():
                return [type(item).__name__, self.node(str(item))]
            case None | bool() | int() | float() | str():
                return item
            case tuple() | list():
                return ["tuple", *map(self.node, item)]
            case frozenset() | set():
                return ["set", *map(self.node, sorted(item))]
            case dict():
                return ["dict", *(self.node(part) for pair in item.items() for part in pair)]
            case complex():
                return ["complex", self.node(item.real), self.node(item.imag)]
            case bytes():
                self.constants.append(item)
                self.size += len(item)
                return ["bytes", self.size - len(item), self.size]
            case Op():
                return self._row(item)
        if type(item) not in FIELDS:
            raise NotData(f"a value of {type(item).__name__}")
        return [type(item).__name__, *(self.node(getattr(item, name)) for name in FIELDS[type(item)])]

    def _row(self, op: Op) -> Any:
        if ROWS.get(op.name) is op:
            return ["row", self.node(op.name)]
        return ["Op", *(self.node(_field(op, name)) for name in OF_ROWS)]


def _field(op: Op, name: str) -> Any:
    """A field of a row; raises NotData if it is a function, or has one."""
    value = getattr(op, name)
    parts = {name: value}
    if isinstance(value, PartKernel):
        parts = {f"{name}.{word}": getattr(value, word) for word in FIELDS[PartKernel]}
    for word, part in parts.items():
        if callable(part):
            raise NotData(f"a function as `{word}` in the row of `{op.name}`")
    return value


def _read(nodes: list[Any], constants: bytes) -> Any:
    """The thing of the last node. Damaged nodes raise one of DAMAGED."""
    made: list[Any] = []
    for node in nodes:
        if not isinstance(node, list):
            made.append(math.nan if node != node else node)  # as capture has it
            continue
        word, *numbers = node
        if word == "bytes":
            made.append(constants[numbers[0] : numbers[1]])
            continue
        parts = [made[n] for n in numbers]
        if word == "tuple":
            made.append(tuple(parts))
        elif word == "Op":
            made.append(Op(dims=resolved, **dict(zip(OF_ROWS, parts, strict=True))))
        elif (cls := CLASSES.get(word)) is not None:
            made.append(cls(*parts))
        elif (kind := ENUMS.get(word)) is not None:
            made.append(kind(parts[0]))
        else:
            made.append(_other(word, parts))
    return made[-1]


def _other(word: str, parts: list[Any]) -> Any:
    match word:
        case "row":
            return ROWS[parts[0]]
        case "dict":
            return dict(zip(parts[::2], parts[1::2], strict=True))
        case "set":
            return frozenset(parts)
        case "complex":
            return complex(*parts)
    raise ValueError(f"a node of an unknown kind, `{word}`")
