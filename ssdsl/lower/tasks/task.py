"""Tasks, which are put in order: computations and messages. The roles at both ends of a message share its task."""

from typing import NamedTuple

from ssdsl.ir.action import At, Compute


class Carry(NamedTuple):
    """One message at one coordinate in time: a value, its gradient, or a signal."""

    message: int
    at: At
    gradient: bool


Task = Compute | Carry
