"""Writes and reads a profile as JSON (docs/profiles.md): seconds by key, and pairs [size, seconds] if they grow."""

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ssdsl.simulate.profile.profile import GROWING, PHASES, VERSION, Curve, Profile, ProfiledMachine

T = TypeVar("T")
MACHINE: dict[str, type] = {"device": str, "torch": str, "threads": int, "cores": int, "processes": int}


class NoProfileError(ValueError):
    """The JSON is no profile: `place` is the path of the wrong value, `reason` says what is wrong with it."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place} {reason}")
        self.place, self.reason = place, reason


def profile_json(profile: Profile) -> dict[str, Any]:
    """The JSON of a profile."""
    return {
        "version": VERSION,
        "machine": {name: getattr(profile.machine, name) for name in MACHINE},
        "sources": list(profile.sources),
        "step": profile.step_s,
        "operators": {words: dict(times) for words, times in sorted(profile.operators.items())},
        "network": {
            f"{kind} among {ranks}": [*map(list, c.points)] for (kind, ranks), c in sorted(profile.network.items())
        },
        "growing": {name: [*map(list, profile.growing[name].points)] for name in GROWING if name in profile.growing},
    }


def read_profile(found: Any) -> Profile:
    """The profile in a JSON value; times of version 1 are divided by the number of ranks that shared a core. Raises
    NoProfileError."""
    table = _table("profile", found)
    version = table.get("version")
    if version not in (1, VERSION):
        raise NoProfileError("profile.version", f"is {version!r}, and this ssdsl reads 1 and {VERSION}")
    machine = _table("profile.machine", table.get("machine"))
    for name, kind in MACHINE.items():
        is_kind = isinstance(machine.get(name), kind) and not isinstance(machine.get(name), bool)
        if not is_kind or (kind is int and machine[name] < 1):
            what = "a text" if kind is str else "a number from 1 on"
            raise NoProfileError(f"profile.machine.{name}", f"is {machine.get(name)!r}, and should be {what}")
    sources = table.get("sources", [])
    if not isinstance(sources, list) or not all(isinstance(s, str) for s in sources):
        raise NoProfileError("profile.sources", "is no list of texts")
    profile = Profile(
        ProfiledMachine(**{name: machine[name] for name in MACHINE}),
        _each("profile.operators", table.get("operators", {}), _phases),
        {_kind(key): curve for key, curve in _each("profile.network", table.get("network", {}), _curve).items()},
        _each("profile.growing", table.get("growing", {}), _curve, GROWING),
        _seconds("profile.step", table.get("step", 0.0)),
        tuple(sources),
    )
    return profile.faster(profile.machine.sharing) if version == 1 else profile


def _each(
    place: str, found: Any, read: Callable[[str, Any], T], known: tuple[str, ...] | None = None
) -> Mapping[str, T]:
    """The values of an object, each as `read` returns it; raises NoProfileError for a key that is not `known`."""
    table = _table(place, found)
    for key in table:
        if known is not None and key not in known:
            raise NoProfileError(f"{place}.{key}", f"is not known; its keys are {', '.join(known)}")
    return {key: read(f"{place}.{key}", value) for key, value in table.items()}


def _table(place: str, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise NoProfileError(place, "is not an object" if found is not None else "is not there")
    return found


def _phases(place: str, found: Any) -> Mapping[str, float]:
    return _each(place, found, _seconds, PHASES)


def _curve(place: str, found: Any) -> Curve:
    if not isinstance(found, list) or not found:
        raise NoProfileError(place, "is no list of [size, seconds]")
    for pair in found:
        is_pair = isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int and pair[0] >= 0
        if not is_pair:
            raise NoProfileError(place, f"has {pair!r}, and should have pairs [size, seconds]")
    return Curve.of((size, _seconds(place, time_s)) for size, time_s in found)


def _kind(key: str) -> tuple[str, int]:
    kind, among, ranks = key.partition(" among ")
    if not (among and ranks.isdecimal()):
        raise NoProfileError(f"profile.network.{key}", "is not named like `all_reduce among 2`")
    return kind, int(ranks)


def _seconds(place: str, found: Any) -> float:
    if not is_time(found):
        raise NoProfileError(place, f"is {found!r}, and a time is a number that is not negative")
    return float(found)


def is_time(found: Any) -> bool:
    """Whether a JSON value is a time: a number that is not negative, and that a float can hold."""
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    return is_number and 0 <= found <= sys.float_info.max
