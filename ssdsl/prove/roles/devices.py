"""Compares sets of devices by their fixed coordinates, without a list of ranks."""

import math
from enum import Enum

from ssdsl.ir.layout import Submesh


class Share(Enum):
    """The share of some devices that lies in others."""

    ALL = "all"
    SOME = "some"
    NONE = "none"


def share(devices: Submesh, of: Submesh) -> Share:
    """The share of `devices` that lies in the submesh `of`."""
    if devices.mesh != of.mesh:
        return Share.NONE if _ranges_apart(devices, of) else Share.SOME
    here = dict(devices.fixed)
    if any(here.get(axis, at) != at for axis, at in of.fixed):
        return Share.NONE
    single = {axis for axis, n in devices.mesh.axes if n == 1}
    return Share.ALL if all(axis in here or axis in single for axis, _ in of.fixed) else Share.SOME


class Inside(dict[Submesh, bool]):
    """Whether all of some devices lie in a submesh; found at the first look-up."""

    def __init__(self, devices: Submesh) -> None:
        super().__init__()
        self.devices = devices

    def __missing__(self, of: Submesh) -> bool:
        self[of] = found = share(self.devices, of) is Share.ALL
        return found


def count(devices: Submesh) -> int:
    """The number of devices in a submesh."""
    held = dict(devices.fixed)
    return math.prod(n for axis, n in devices.mesh.axes if axis not in held)


def _ranges_apart(a: Submesh, b: Submesh) -> bool:
    ends = [(s.mesh.first, s.mesh.first + math.prod(n for _, n in s.mesh.axes)) for s in (a, b)]
    return ends[0][1] <= ends[1][0] or ends[1][1] <= ends[0][0]
