"""Tasks: what is put in order. A task of a message is shared by the roles at both of its ends."""

from typing import NamedTuple

from ssdsl.ir.action import At, Compute


class Carry(NamedTuple):
    """A message travels: a value, its gradient, or a signal."""

    message: int
    at: At
    gradient: bool


Task = Compute | Carry
