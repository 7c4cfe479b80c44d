"""Actions: what a role does in a training step, one after another.

Communication between devices is two events. `Start` posts a send or a receive and goes on; `Wait` stands in front of
the task that needs what arrives. `Free` drops a value behind its last reader.

A large plan has half a million of these four: they are tuples, which Python makes, hashes and compares fastest.
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
    """What a role does in a message."""

    SEND = "send"
    RECEIVE = "receive"
    BOTH = "exchange"  # some of its devices send to others of them


class Start(NamedTuple):
    """Posts this role's end of a message: of a value, or of its gradient."""

    message: int
    at: At
    gradient: bool
    end: End


class Wait(NamedTuple):
    """Waits for what was posted."""

    message: int
    at: At
    gradient: bool


class Free(NamedTuple):
    """Drops a part of a value that nobody on this device reads any more."""

    slot: str
    at: At


@dataclass(frozen=True, slots=True)
class StartReduce:
    """Starts to complete the gradient of a flat parameter, to which nothing is added any more; ZeRO-2's behind each
    backward that adds to it."""

    flat: int


@dataclass(frozen=True, slots=True)
class WaitReduce:
    """Waits for a completed gradient."""

    flat: int


@dataclass(frozen=True, slots=True)
class Update:
    """The optimizer's step on all flat parameters of the role."""


@dataclass(frozen=True, slots=True)
class GatherParam:
    """Brings the weights that other devices updated (ZeRO-1 and -2)."""

    flat: int


Action = Compute | Start | Wait | Free | StartReduce | WaitReduce | Update | GatherParam
