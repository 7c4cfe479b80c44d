"""Actions: the list of what a role does in a training step, in order.

Communication between devices is two actions: `Start` posts a send or a receive without waiting; `Wait` comes before the
task that needs the received value. `Free` drops a value after its last reader.

A large plan has half a million of `Compute`, `Start`, `Wait` and `Free`: they are named tuples, which Python creates,
hashes and compares fastest.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ssdsl.plan.plan import Phase

At = tuple[int, ...]


class Compute(NamedTuple):
    """A function at one coordinate in one phase: forward, backward, or one half of backward."""

    function: int
    at: At
    phase: Phase


class End(Enum):
    """The end of a message at which a role is: it sends, receives, or both."""

    SEND = "send"
    RECEIVE = "receive"
    BOTH = "exchange"  # some of its devices send to others of them


class Start(NamedTuple):
    """Posts this role's end of a message, which carries a value or its gradient."""

    message: int
    at: At
    gradient: bool
    end: End


class Wait(NamedTuple):
    """Waits until a message has arrived whose receive was posted."""

    message: int
    at: At
    gradient: bool


class Free(NamedTuple):
    """Drops a part of a value that no later action on this device reads."""

    slot: str
    at: At


@dataclass(frozen=True, slots=True)
class ScatterGrads:
    """Reduces the gradient that a backward has left to the devices that hold its parts (ZeRO-2)."""

    flat: int


@dataclass(frozen=True, slots=True)
class StartReduce:
    """Starts to complete the gradient of a flat parameter, once its last addend has been computed."""

    flat: int


@dataclass(frozen=True, slots=True)
class WaitReduce:
    """Waits until the gradient of a flat parameter is complete."""

    flat: int


@dataclass(frozen=True, slots=True)
class Update:
    """The optimizer's step on all flat parameters of the role."""


@dataclass(frozen=True, slots=True)
class GatherParam:
    """Gathers the weights that other devices have updated: those of which a device holds more than it updates."""

    flat: int


Action = Compute | Start | Wait | Free | ScatterGrads | StartReduce | WaitReduce | Update | GatherParam
