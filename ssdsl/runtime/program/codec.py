"""Converts frozen dataclasses to JSON, and back by the types of their fields.

A dataclass is an object without the fields that have default values; a NamedTuple is a list, as any tuple. For a union
the first member that fits is taken: of several dataclasses, the first whose fields without defaults are present.

>>> from typing import NamedTuple
>>> Cut = NamedTuple("Cut", [("axis", str), ("parts", int | tuple[int, ...])])
>>> text = to_json({4: Cut("tp", (3, 5))})
>>> text, from_json(dict[int, Cut], text)
('{"4": ["tp", [3, 5]]}', {4: Cut(axis='tp', parts=(3, 5))})
"""

import json
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
WIDTH = 120
Read = Callable[[Any], Any]


def to_json(value: Any) -> str:
    """The JSON text of a dataclass, or of a container of dataclasses, on one line."""
    return _ENCODER.encode(value)


def to_json_lines(value: Any) -> str:
    """The JSON text of a value on several lines: an object or a list that is longer than a line has a line for each
    item.

    >>> print(to_json_lines({"name": "gpus", "weights": ["a" * 50, "b" * 50, "c" * 50], "axes": ["dp", "tp"]}))
    {
     "name": "gpus",
     "weights": [
      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
      "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
      "cccccccccccccccccccccccccccccccccccccccccccccccccc"
     ],
     "axes": ["dp", "tp"]
    }
    """
    return _lines(json.loads(to_json(value)), "")


def _lines(value: Any, indent: str) -> str:
    line = _ENCODER.encode(value)
    if len(indent) + len(line) <= WIDTH or not isinstance(value, dict | list):
        return line
    inner = indent + " "
    if isinstance(value, dict):
        items = [f"{_ENCODER.encode(name)}: {_lines(item, inner)}" for name, item in value.items()]
    else:
        items = [_lines(item, inner) for item in value]
    between = f",\n{inner}".join(items)
    return f"{line[0]}\n{inner}{between}\n{indent}{line[-1]}"


def _fields(value: Any) -> dict[str, Any]:
    every = ((f, getattr(value, f.name)) for f in fields(value))
    return {f.name: found for f, found in every if f.default is MISSING or found != f.default}


_ENCODER = json.JSONEncoder(default=_fields, check_circular=False)  # what it encodes has no circles


def from_json(kind: type[T], text: str) -> T:
    """The value of type `kind` from a text of `to_json`; see `decoded`."""
    return decoded(kind, json.loads(text))


def decoded(kind: type[T], value: Any) -> T:
    """The value of type `kind` from JSON data. A list of fields in order is accepted as a dataclass; unknown names are
    ignored.

    Raises TypeError or ValueError for data of another type.
    """
    return _reader(kind)(value)  # type: ignore[arg-type, no-any-return]


@cache
def _reader(kind: Any) -> Read:
    """A function that reads values of a type."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _union({member: _reader(member) for member in args})
    if origin is tuple and args[-1] is Ellipsis:
        read = _reader(args[0])
        return lambda value: tuple(map(read, value))
    if origin is tuple:
        reads = [*map(_reader, args)]
        return lambda value: tuple(read(item) for read, item in zip(reads, value, strict=True))
    if origin is dict:  # or a list of pairs
        key, read = args[0], _reader(args[1])
        return lambda value: {key(name): read(item) for name, item in _pairs(value)}
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return _record(kind, {name: _reader(hint) for name, hint in get_type_hints(kind).items()})
    return (lambda value: None) if kind is NoneType else kind


def _union(reads: dict[Any, Read]) -> Read:
    def read(value: Any) -> Any:
        for kind, found in reads.items():
            if _may_be(kind, value):
                return found(value)
        raise TypeError(f"{value!r} is none of {', '.join(map(str, reads))}")

    return read


def _may_be(kind: Any, value: Any) -> bool:
    """Whether the JSON data may be a value of this type."""
    if not is_dataclass(kind):
        return isinstance(value, list if get_origin(kind) is tuple else kind)
    needed = (f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING)
    return isinstance(value, dict) and all(name in value for name in needed)


def _pairs(value: Any) -> Any:
    return value.items() if isinstance(value, dict) else value


def _record(kind: Any, reads: dict[str, Read]) -> Read:
    def read(value: Any) -> Any:
        given = value if isinstance(value, dict) else dict(zip(reads, value, strict=True))
        return kind(**{name: reads[name](item) for name, item in given.items() if name in reads})

    return read
