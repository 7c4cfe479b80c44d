"""Reads and writes files of costs."""

import json
import sys
from pathlib import Path
from typing import Any

from ssdsl.lang.save import save_text
from ssdsl.lang.suggest import suggest
from ssdsl.simulate.errors import CostsUnreadable
from ssdsl.simulate.measured import UNITS, Times
from ssdsl.text.diagnostic import PlanError

NUMBERS = {"TF": "forward", "TB": "dgrad", "TW": "wgrad", "Tcomm": "transfer"}
TABLES = ("tasks", "transfers", "reduce", "optimizer")
EXAMPLE = 'as in {"unit": "ms", "TF": 18.5, "TB": 18.1, "TW": 9.3, "Tcomm": 0.6}'


def read_costs(path: Path) -> Times:
    """The times of a file. Raises PlanError: it cannot be read, or holds something else."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise _wrong(path, (error.strerror or str(error)).lower(), "give a file that exists") from None
    except (ValueError, RecursionError) as error:
        raise _wrong(path, f"it is not JSON, {error}", EXAMPLE) from None
    if not isinstance(found, dict):
        raise _wrong(path, "it is not an object", EXAMPLE)
    known = ["unit", *NUMBERS, *TABLES]
    for key in found:
        if key not in known:
            raise _wrong(path, f"it has `{key}`", suggest(key, known) or f"its keys are {', '.join(known)}")
    unit = found.get("unit", "s")
    if not isinstance(unit, str) or unit not in UNITS:
        raise _wrong(path, f"its unit is {json.dumps(unit)}", "the units are s, ms and us")
    read: dict[str, Any] = {n: _time(path, key, found[key], UNITS[unit]) for key, n in NUMBERS.items() if key in found}
    read |= {name: _table(path, name, found[name], UNITS[unit]) for name in TABLES if name in found}
    return Times(**read)


def write_costs(file: str, times: Times) -> None:
    """Writes a file of costs, in milliseconds. Raises PlanError where it cannot be written."""
    numbers = {key: 1e3 * getattr(times, name) for key, name in NUMBERS.items()}
    tables = {name: {k: 1e3 * t for k, t in getattr(times, name).items()} for name in TABLES}
    save_text(file, json.dumps({"unit": "ms", **numbers, **tables}, indent=2) + "\n")


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
