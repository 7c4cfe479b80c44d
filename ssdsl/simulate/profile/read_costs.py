"""Reads and writes files of costs, and chooses the costs in a file for a program: the times of its own tasks, else a
profile. What does not fit is refused."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.ir.program import Program
from ssdsl.lang.save import save_text
from ssdsl.lang.suggest import suggest
from ssdsl.record import Record, field
from ssdsl.simulate.price.costs import Costs
from ssdsl.simulate.profile.errors import CostsUnreadable, MachinesMixed, ProfileLacks, TasksMisfit
from ssdsl.simulate.profile.kernel_key import kernel_key
from ssdsl.simulate.profile.measured import UNITS, Measured, Times
from ssdsl.simulate.profile.profile import Profile, ProfiledMachine
from ssdsl.simulate.profile.profile_json import NoProfileError, is_time, profile_json, read_profile
from ssdsl.simulate.profile.profiled import Profiled
from ssdsl.text.diagnostic import PlanError

NUMBERS = {"TF": "forward", "TB": "dgrad", "TW": "wgrad", "Tcomm": "transfer"}
TABLES = ("tasks", "transfers", "reduce", "optimizer")
EXAMPLE = 'as in {"unit": "ms", "TF": 18.5, "TB": 18.1, "TW": 9.3, "Tcomm": 0.6}'
TEXTS = ("recorded", "program")


class CostsFile(Record):
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
    if not is_time(value):
        raise _wrong(path, f"`{key}` is {json.dumps(value)}", "a time is a number that is not negative")
    return float(value) * unit


def _wrong(path: Path, reason: str, hint: str) -> PlanError:
    return PlanError(CostsUnreadable(None, str(path), reason, hint))


# -- the costs of a program --------------------------------------------------------------------------------------------


def costs_for(program: Program, found: CostsFile, command: str) -> Costs:
    """The costs of a program from a file. `command` is one that records a fitting profile; errors show it.

    Raises PlanError: the file has the times of another program's tasks, or a profile that lacks times of this one.
    """
    times, profile = found.times, found.profile
    is_own = found.program == digest(program)
    if profile is not None and not is_own:
        return _profiled(program, found, command)
    if times.tasks and not is_own:
        _check_tasks(program, found, command)
    return Measured(program, times)


def digest(program: Program) -> str:
    """A hash that is equal for programs whose functions have the same names and run the same kernels."""
    facts = ProgramIndex(program)
    words = [[f.name, *(kernel_key(facts, f, instr) for instr in f.body())] for f in program.functions]
    return hashlib.sha256(repr((words, [r.name for r in program.roles])).encode()).hexdigest()[:16]


def _profiled(program: Program, found: CostsFile, command: str) -> Costs:
    profile = found.profile
    assert profile is not None
    if missing := lacking(program, profile):
        raise PlanError(ProfileLacks.of(found.file, missing, profile.sources, command))
    return Profiled(ProgramIndex(program), profile)


def lacking(program: Program, profile: Profile) -> tuple[str, ...]:
    """The things in a program for which a profile has no time, in words."""
    costs = Profiled(ProgramIndex(program), profile)
    for role in program.roles:
        for action in dict.fromkeys(role.actions):
            costs.of(action, role)
    return tuple(costs.lacking)


def check_machine(file: str, known: ProfiledMachine, found: ProfiledMachine) -> None:
    """Raises PlanError if the times of two machines would be mixed."""
    facts = ("device", "torch", "threads", "cores")
    unlike = [name for name in facts if getattr(known, name) != getattr(found, name)]
    if unlike:
        was, now = (str(getattr(machine, unlike[0])) for machine in (known, found))
        raise PlanError(MachinesMixed(None, file, unlike[0], was, now))


def _check_tasks(program: Program, found: CostsFile, command: str) -> None:
    """Raises PlanError unless the file's tasks are those of this program; a file that names no program may lack tasks
    if it has times of stages."""
    needed = dict.fromkeys(_tasks(program))
    has, times = found.times.tasks, found.times
    stages = times.forward or times.dgrad or times.wgrad
    lacking = [] if stages and found.program is None else [name for name in needed if name not in has]
    foreign = [name for name in has if name not in needed]
    if found.program is not None or lacking or foreign:
        raise PlanError(TasksMisfit.of(found.file, found.recorded, lacking, foreign, command))


def _tasks(program: Program) -> Iterator[str]:
    for role in program.roles:
        yield from (f"{program.functions[task.function].name}.{task.phase}" for task in role.computes())
