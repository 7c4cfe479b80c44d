"""The schema of a cluster's file: its tables, their keys, and the types and ranges of values."""

from collections.abc import Iterable, Iterator
from typing import Any

from ssdsl.cluster.device import DTYPES, Overlap
from ssdsl.cluster.errors import MissingKey, OutOfRange, UnknownKey, WrongKeyType
from ssdsl.cluster.places import Path, Places
from ssdsl.lang.suggest import listed, nearest, suggest
from ssdsl.record import Record, field_names
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Source, Span


class Scalar(Record):
    """A text, a flag, or a number from `least` to `most`.

    The bounds are far from those of any machine: they keep numbers that are computed from these finite and above zero.
    """

    words: str
    type: type
    range: str = ""
    least: float = 0
    most: float = 0

    def holds(self, value: Any) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return value != ""
        return self.least <= value <= self.most


TEXT = Scalar("a text", str, "some words")
FLAG = Scalar("true or false", bool)
COUNT = Scalar("a whole number", int, "a whole number from 1 to a million", 1, 1e6)
RATE = Scalar("a number", float, "a number from 0.000001 to a billion", 1e-6, 1e9)
MEMORY = Scalar("a number", float, "a number from 0.000001 to a million", 1e-6, 1e6)
TIME = Scalar("a number", float, "a number from 0 to a billion", 0, 1e9)
SHARE = Scalar("a number", float, "a number from 0 to 100", 0, 100)
FRACTION = Scalar("a number", float, "a fraction from 0.000001 to 1", 1e-6, 1)


class Key(Record):
    """A key of a table. `example` is a possible value; `many` means an `[[array]]` of tables, `named` a table of
    tables."""

    value: "Scalar | TableSchema"
    example: str
    required: bool = True
    many: bool = False
    named: bool = False


class TableSchema(Record):
    """The keys of one kind of table."""

    keys: dict[str, Key]


SOURCE = Key(TEXT, '"NVIDIA A100 datasheet, 2021"', required=False)
PEAK = TableSchema({d: Key(RATE, "19.5" if d == "float32" else "312", required=d == "float32") for d in DTYPES})
DEVICE = TableSchema(
    {
        "name": Key(TEXT, '"A100 SXM"'),
        "peak_tflops": Key(PEAK, "{ float32 = 19.5, bfloat16 = 312 }"),
        "memory_gib": Key(MEMORY, "79.1"),
        "memory_bandwidth_gb_s": Key(RATE, "2039"),
        "compute_efficiency": Key(FRACTION, "0.8"),
        "attention_efficiency": Key(FRACTION, "0.6", required=False),
        "memory_efficiency": Key(FRACTION, "0.9"),
        "launch_us": Key(TIME, "4"),
        "processors": Key(COUNT, "108", required=False),
        "tile_us": Key(TIME, "1.5", required=False),
        "contention": Key(SHARE, "0.19", required=False),
        "source": SOURCE,
    }
)
LINK = {
    "name": Key(TEXT, '"node"'),
    "devices": Key(COUNT, "8", required=False),
    "bandwidth_gb_s": Key(RATE, "235"),
    "latency_us": Key(TIME, "1.9"),
    "alone_bandwidth_gb_s": Key(RATE, "25", required=False),
    "send_bandwidth_gb_s": Key(RATE, "235", required=False),
    "send_latency_us": Key(TIME, "1.9", required=False),
    "source": SOURCE,
}
HOST = TableSchema(
    {
        "memory_gib": Key(MEMORY, "2048"),
        "memory_bandwidth_gb_s": Key(RATE, "409"),
        "bandwidth_gb_s": Key(RATE, "25"),
        "latency_us": Key(TIME, "10", required=False),
        "source": SOURCE,
    }
)
NODES = TableSchema(
    {
        "device": Key(TEXT, '"a100"'),
        "count": Key(COUNT, "4"),
        "devices": Key(COUNT, "8"),
        "site": Key(TEXT, '"Paris"', required=False),
        "device_hour": Key(RATE, "3.06", required=False),
        "host": Key(HOST, "a table [nodes.host] with memory_gib and bandwidth_gb_s", required=False),
        "levels": Key(
            TableSchema(LINK), "a table [[nodes.levels]] with name, bandwidth_gb_s and latency_us", many=True
        ),
        "source": SOURCE,
    }
)
OVERLAP = TableSchema({name: Key(FLAG, "false", required=False) for name in field_names(Overlap)})
ERROR = TableSchema(
    {
        "step": Key(FRACTION, "0.08"),
        "source": Key(TEXT, '"Narayanan et al. 2021, table 1", by `python -m bench foresight`'),
    }
)
PRICE = TableSchema(
    {
        "device_hour": Key(RATE, "5.12"),
        "gb_between_sites": Key(TIME, "0.02", required=False),
        "currency": Key(TEXT, '"USD"', required=False),
        "source": Key(TEXT, '"the price list of your cloud, 2024"'),
    }
)
FILE = TableSchema(
    {
        "about": Key(TEXT, '"two nodes of 8 A100"'),
        "source": SOURCE,
        "shares_cores": Key(FLAG, "true", required=False),
        "routes": Key(FLAG, "false", required=False),
        "overlap": Key(OVERLAP, "{ sends = false }", required=False),
        "error": Key(ERROR, '{ step = 0.08, source = "..." }', required=False),
        "price": Key(PRICE, '{ device_hour = 5.12, source = "..." }', required=False),
        "devices": Key(DEVICE, "a table [devices.a100] with name, peak_tflops and memory_gib", named=True),
        "nodes": Key(NODES, "a table [[nodes]] with device, count and devices", many=True),
        "levels": Key(TableSchema(LINK), "[[levels]]", required=False, many=True),
    }
)
MOVED = {"fuse": "the command says what is fused: `--kernels compiled`, or, as in Megatron-LM, `--kernels fused`"}
FLAGS = TableSchema({name: key for name, key in FILE.keys.items() if key.value is FLAG})


class Check(Record):
    """Checks the contents of a file against the tables above; `places` has the spans of its keys and values."""

    source: Source
    places: Places

    def table(self, table: TableSchema, found: dict[str, Any], path: Path = ()) -> Iterator[Diagnostic]:
        """All mistakes in a table and below it."""
        where = self.places.key(path) or Span(self.source, 0, 0)
        unknown = [name for name in found if name not in table.keys]
        meant = {known for name in unknown for known in nearest(name, table.keys)[:1]}
        for name in unknown:
            suggestion = MOVED.get(name) or suggest(name, table.keys)
            yield UnknownKey(self.places.key((*path, name)), suggestion, shown(path), name, listed(table.keys, 12))
        for name, key in table.keys.items():
            if name in found:
                yield from self._value(key, found[name], (*path, name))
            elif key.required and name not in meant:
                example = key.example if key.example.startswith("a table") else f"`{name} = {key.example}`"
                yield MissingKey(where, shown(path), name, example)

    def _value(self, key: Key, value: Any, path: Path) -> Iterator[Diagnostic]:
        if isinstance(key.value, Scalar):
            yield from self._scalar(key, key.value, value, path)
            return
        if not isinstance(value, list if key.many else dict) or not value:
            yield self._wrong(key, value, path, "one or more tables" if key.many or key.named else "a table")
            return
        if isinstance(value, dict) and not key.named:
            yield from self.table(key.value, value, path)
            return
        inner_tables: Iterable[tuple[str | int, Any]] = enumerate(value) if isinstance(value, list) else value.items()
        for name, inner in inner_tables:
            if isinstance(inner, dict):
                yield from self.table(key.value, inner, (*path, name))
            else:
                yield self._wrong(key, inner, (*path, name), "a table")

    def _scalar(self, key: Key, scalar: Scalar, value: Any, path: Path) -> Iterator[Diagnostic]:
        accepted = (int, float) if scalar.type is float else (scalar.type,)
        if type(value) not in accepted:
            yield self._wrong(key, value, path, scalar.words)
        elif not scalar.holds(value):
            found = f"{value}"[:40] or "empty"
            yield OutOfRange(
                self.places.value(path), str(path[-1]), found, scalar.range, f"`{path[-1]} = {key.example}`"
            )

    def _wrong(self, key: Key, value: Any, path: Path, expected: str) -> Diagnostic:
        name = next(str(p) for p in reversed(path) if isinstance(p, str))
        is_table = key.example.startswith(("a table", "[["))
        example = key.example if is_table or key.named else f"`{name} = {key.example}`"
        return WrongKeyType(self.places.value(path), name, _kind(value), expected, example)


KINDS = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a table",
}


def _kind(value: Any) -> str:
    if value in ([], {}):
        return "empty"
    return KINDS.get(type(value), "a date or time")


def shown(path: Path) -> str:
    """The name of a table as the file writes it: `[devices.a100]`, `[[nodes]]`."""
    names = ".".join(str(p) for p in path if isinstance(p, str))
    if not path:
        return "the file"
    return f"`[[{names}]]`" if isinstance(path[-1], int) else f"`[{names}]`"
