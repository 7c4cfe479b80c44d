"""The tape of a function's memory: each touch of a storage by one of its tasks, in order, and folds over the touches.

For example `y = gelu(x)` and `z = linear(y, w)`, where `y` is recomputed. Forward leaves `x`. Backward reads it, makes
`y` again, makes the gradient of `y` from that of `z`, drops both `y` and the gradient of `z`, and so on:

>>> def touch(kind: TouchKind, storage: str, size_bytes: int = 0) -> Touch:
...     return Touch(InstrPlace(0, 0), storage, kind, size_bytes)
>>> backward = [
...     touch(TouchKind.MAKE, "gradient of z", 4),
...     touch(TouchKind.AGAIN, "y", 16), touch(TouchKind.READ, "x", 16), touch(TouchKind.MAKE, "gradient of y", 16),
...     touch(TouchKind.DROP, "gradient of z"), touch(TouchKind.DROP, "y"),
...     touch(TouchKind.MAKE, "gradient of x", 16), touch(TouchKind.DROP, "gradient of y"), touch(TouchKind.DROP, "x"),
... ]
>>> kept(backward), peak_bytes(backward, {"x": 16})
({'x': 16}, 36)

A storage is memory that is allocated and freed as a whole: a tensor with all its views. Sizes are bytes on one device.
"""

from collections.abc import Container, Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from ssdsl.ir.uses import InstrPlace
from ssdsl.record import Record

Sizes = dict[str, int]  # bytes by storage


class TouchKind(Enum):
    """What a touch does with a storage."""

    READ = "read"  # of what forward has left
    MAKE = "make"  # or let it grow
    AGAIN = "again"  # a recomputed section makes it once more
    GATHER = "gather"  # gathered once more from the parts of all devices
    DROP = "drop"


class Touch(NamedTuple):
    """A touch of a storage, at the place of the instructions that it belongs to. The storage has `size_bytes` from then
    on, unless it is larger already; after a `DROP` it has none."""

    at: InstrPlace
    storage: str
    kind: TouchKind
    size_bytes: int = 0


class Tape(Record):
    """The touches of a function's backward; with a backward in halves, `for_weights` are those of the second half.
    `lasting` are the storages that the first backward of a step makes, and that are there in later ones: gradients of
    weights."""

    backward: tuple[Touch, ...]
    for_weights: tuple[Touch, ...] = ()
    lasting: Mapping[str, int] = MappingProxyType({})


def brought_back(touches: Iterable[Touch], storages: Container[str]) -> tuple[Touch, ...]:
    """The touches of a backward before which some storages lie elsewhere, and come back where they are first read."""
    read, again = TouchKind.READ, TouchKind.GATHER
    return tuple(t._replace(kind=again) if t.kind is read and t.storage in storages else t for t in touches)


def kept(touches: Iterable[Touch]) -> Sizes:
    """The storages that must be there when a backward begins: forward keeps them for it."""
    return {t.storage: t.size_bytes for t in touches if t.kind is TouchKind.READ}


def made_again(touches: Iterable[Touch], there: Mapping[str, int]) -> dict[int, int]:
    """By section, the bytes that backward makes again for it, beside the storages that are `there`."""
    again: dict[int, Sizes] = {}
    for t in touches:
        if t.kind is TouchKind.AGAIN and t.storage not in there:
            again.setdefault(t.at.section, {})[t.storage] = t.size_bytes
    return {section: sum(sizes.values()) for section, sizes in again.items()}


def peak_bytes(touches: Iterable[Touch], there: Mapping[str, int]) -> int:
    """The bytes by which memory grows at most, if these storages are `there` when the touches begin."""
    live, read, drop = dict(there), TouchKind.READ, TouchKind.DROP
    most = level = 0  # the peak so far, and the growth now
    for _, storage, kind, size_bytes in touches:
        if kind is drop:
            level -= live.pop(storage, 0)
        elif kind is not read and (growth := size_bytes - live.get(storage, 0)) > 0:
            live[storage] = size_bytes
            level += growth
            most = max(most, level)
    return most
