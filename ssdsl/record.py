"""Values of several fields: frozen, and compared, hashed and copied by their fields, which costs next to nothing."""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

from msgspec import Struct, field, structs

__all__ = ["Record", "as_dict", "field", "field_names", "replace"]

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Record(Struct, frozen=True, cache_hash=True):
    """A value with the fields that its class declares, as a frozen dataclass has.

    Making one takes a fifth of the time that a dataclass takes, a copy with a change a twentieth, and defining its
    class a fiftieth: a compiler makes a hundred thousand of them, and a command defines five hundred classes. A class
    with a field that comparisons must ignore is a dataclass instead: a record has no such fields.
    """


def field_names(of: object) -> tuple[str, ...]:
    """The names of the fields of a record, of a dataclass, or of the class of either; () for anything else.

    >>> field_names(slice(1)), field_names(Record)
    ((), ())
    """
    if dataclasses.is_dataclass(of):
        return tuple(f.name for f in dataclasses.fields(of))
    return getattr(of, "__struct_fields__", ())


def as_dict(of: object) -> dict[str, Any]:
    """The fields of a record or a dataclass by name, in order; their values as they are."""
    return {name: getattr(of, name) for name in field_names(of)}


def replace(value: T, /, **changes: Any) -> T:
    """A copy of a record or a dataclass with other values of some fields.

    >>> class Point(Record):
    ...     x: int
    ...     y: int = 0
    >>> replace(Point(1), y=2)
    Point(x=1, y=2)
    """
    if isinstance(value, Struct):
        return structs.replace(value, **changes)
    return dataclasses.replace(value, **changes)  # type: ignore[type-var]
