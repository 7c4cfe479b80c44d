"""Reads and writes files of costs."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssdsl.lang.save import save_text
from ssdsl.lang.suggest import suggest
from ssdsl.simulate.profile.errors import CostsUnreadable
from ssdsl.simulate.profile.measured import UNITS, Times
from ssdsl.simulate.profile.profile import Profile
from ssdsl.simulate.profile.profile_json import NoProfileError, profile_json, read_profile
from ssdsl.text.diagnostic import PlanError

NUMBERS = {"TF": "forward", "TB": "dgrad", "TW": "wgrad", "Tcomm": "transfer"}
TABLES = ("tasks", "transfers", "reduce", "optimizer")
EXAMPLE = 'as in {"unit": "ms", "TF": 18.5, "TB": 18.1, "TW": 9.3, "Tcomm": 0.6}'
TEXTS = ("recorded", "program")


@dataclass(frozen=True, slots=True)
class CostsFile:
    """The content of a file of costs: times of tasks, perhaps with the run that they were `recorded` from and the
    digest of its `program`, and perhaps a profile of operators."""

    file: str
    times: Times = field(default_factory=Times)
    recorded: str | None = None
    program: str | None = None
    profile: Profile | None = None


def read_costs(path: Path) -> CostsFile:
    """The content of a file. Raises PlanError: it cannot be read, or is no file of costs."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise _wrong(path, (error.strerror or str(error)).lower(), "give a file that exists") from None
    except (ValueError, RecursionError) as error:
        raise _wrong(path, f"it is not JSON, {error}", EXAMPLE) from None
    if not isinstance(found, dict):
        raise _wrong(path, "it is not an object", EXAMPLE)
    known = ["unit", *NUMBERS, *TABLES, *TEXTS, "profile"]
    for key in found:
        if key not in known:
            raise _wrong(path, f"it has `{key}`", suggest(key, known) or f"its keys are {', '.join(known)}")
    unit = found.get("unit", "s")
    if not isinstance(unit, str) or unit not in UNITS:
        raise _wrong(path, f"its unit is {json.dumps(unit)}", "the units are s, ms and us")
    read: dict[str, Any] = {n: _time(path, key, found[key], UNITS[unit]) for key, n in NUMBERS.items() if key in found}
    read |= {name: _table(path, name, found[name], UNITS[unit]) for name in TABLES if name in found}
    for name in TEXTS:
        if not isinstance(found.get(name, ""), str):
            raise _wrong(
                path, f"`{name}` is {json.dumps(found[name])}", "it is a text, as `ssdsl run --profile` writes"
            )
    said = {name: found.get(name) for name in TEXTS}
    return CostsFile(str(path), Times(**read), **said, profile=_profile(path, found))


def _profile(path: Path, found: dict[str, Any]) -> Profile | None:
    try:
        return read_profile(found["profile"]) if "profile" in found else None
    except NoProfileError as error:
        raise _wrong(path, f"`{error.place}` {error.reason}", "record it anew with `ssdsl profile`") from None


def write_profile(file: str, profile: Profile) -> None:
    """Writes a file that has only a profile. Raises PlanError if it cannot be written."""
    save_text(file, json.dumps({"profile": profile_json(profile)}, indent=1) + "\n")


def write_costs(
    file: str, times: Times, recorded: str | None = None, program: str | None = None, profile: Profile | None = None
) -> None:
    """Writes a file of costs, in milliseconds; a profile is in seconds. Raises PlanError if it cannot be written."""
    numbers = {key: 1e3 * getattr(times, name) for key, name in NUMBERS.items()}
    tables = {name: {k: 1e3 * t for k, t in getattr(times, name).items()} for name in TABLES}
    said = {name: text for name, text in (("recorded", recorded), ("program", program)) if text is not None}
    more = {"profile": profile_json(profile)} if profile is not None else {}
    save_text(file, json.dumps({"unit": "ms", **said, **numbers, **tables, **more}, indent=1) + "\n")


def _table(path: Path, name: str, value: Any, unit: float) -> dict[str, float]:
    if not isinstance(value, dict):
        raise _wrong(path, f"`{name}` is not an object", 'as in "tasks": {"block0.fwd": 1.5}')
    return {key: _time(path, f"{name}.{key}", time, unit) for key, time in value.items()}


def _time(path: Path, key: str, value: Any, unit: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= sys.float_info.max:
        raise _wrong(path, f"`{key}` is {json.dumps(value)}", "a time is a number that is not negative")
    return float(value) * unit


def _wrong(path: Path, reason: str, hint: str) -> PlanError:
    return PlanError(CostsUnreadable(None, str(path), reason, hint))
