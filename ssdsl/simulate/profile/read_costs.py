"""Reads and writes files of costs, and chooses the costs in a file for a program: the times of its own tasks, else a
profile. What does not fit is refused."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.analyse.state import MIXED, StatePrecision
from ssdsl.cluster.cluster import Cluster
from ssdsl.ir.program import Kernels, Program
from ssdsl.lang.save import save_text
from ssdsl.lang.suggest import suggest
from ssdsl.record import Record, field
from ssdsl.simulate.price.costs import Costs
from ssdsl.simulate.profile.costs_json import KEYS, CostsJson, MisfitError, ProfileJson, decoded, encoded
from ssdsl.simulate.profile.errors import CostsArePartial, CostsUnreadable, MachinesMixed, ProfileLacks, TasksMisfit
from ssdsl.simulate.profile.kernel_key import kernel_key
from ssdsl.simulate.profile.measured import Measured, Times
from ssdsl.simulate.profile.partly_profiled import PartlyProfiled
from ssdsl.simulate.profile.profile import Profile, ProfiledMachine
from ssdsl.simulate.profile.profiled import Profiled
from ssdsl.text.diagnostic import PlanError

EXAMPLE = 'as in {"unit": "ms", "TF": 18.5, "TB": 18.1, "TW": 9.3, "Tcomm": 0.6}'
TEXT = "it is a text, as `ssdsl run --profile` writes"
HINTS = {
    "unit": "the units are s, ms and us",
    "profile": "record it anew with `ssdsl profile`",
    **dict.fromkeys(("recorded", "program"), TEXT),
    **dict.fromkeys(("tasks", "transfers", "reduce", "optimizer"), 'as in "tasks": {"block0.fwd": 1.5}'),
}


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
        read = decoded(path.read_bytes(), CostsJson)
    except OSError as error:
        raise _wrong(path, (error.strerror or str(error)).lower(), "give a file that exists") from None
    except MisfitError as error:
        raise _wrong(path, *_misfit(error)) from None
    except (ValueError, RecursionError) as error:
        raise _wrong(path, f"it is not JSON: {error}", EXAMPLE) from None
    profile = None if read.profile is None else read.profile.profile()
    return CostsFile(str(path), read.times(), read.recorded, read.program, profile)


def read_whole_costs(path: Path) -> CostsFile:
    """The content of a file, for those who compare programs by it. Raises PlanError, also for a partial profile."""
    found = read_costs(path)
    if found.profile is not None and found.profile.partial:
        raise PlanError(CostsArePartial(None, found.file))
    return found


def _misfit(error: MisfitError) -> tuple[str, str]:
    """The reason why a file does not fit, and what to write instead."""
    first = error.place.partition(".")[0]
    if not first:
        unknown = error.reason.partition("unknown field `")[2].rstrip("`")
        if not unknown:
            return "it is not an object", EXAMPLE
        return f"it has `{unknown}`", suggest(unknown, KEYS) or f"its keys are {', '.join(KEYS)}"
    return f"`{error.place}`: {error.reason}", HINTS.get(first, "a time is a number that is not negative")


def write_profile(file: str, profile: Profile) -> None:
    """Writes a file that has only a profile. Raises PlanError if it cannot be written."""
    save_text(file, encoded({"profile": ProfileJson.of(profile)}))


def write_costs(
    file: str, times: Times, recorded: str | None = None, program: str | None = None, profile: Profile | None = None
) -> None:
    """Writes a file of costs, in milliseconds; a profile is in seconds. Raises PlanError if it cannot be written."""
    more = None if profile is None else ProfileJson.of(profile)
    save_text(file, encoded(CostsJson.of(times, recorded=recorded, program=program, profile=more)))


def _wrong(path: Path, reason: str, hint: str) -> PlanError:
    return PlanError(CostsUnreadable(None, str(path), reason, hint))


# -- the costs of a program --------------------------------------------------------------------------------------------


def costs_for(
    program: Program, found: CostsFile, command: str, cluster: Cluster, state: StatePrecision = MIXED
) -> Costs:
    """The costs of a program from a file. `command` is one that records a fitting profile; errors show it. What a
    partial profile lacks takes as long as on this cluster.

    Raises PlanError: the file has the times of another program's tasks, or a profile that lacks times of this one.
    """
    times, profile = found.times, found.profile
    is_own = found.program == digest(program)
    if profile is not None and profile.partial and not is_own:
        return PartlyProfiled(program, profile, cluster, state)
    if profile is not None and not is_own:
        return _profiled(program, found, command)
    if times.tasks and not is_own:
        _check_tasks(program, found, command)
    return Measured(program, times)


def recording(program: Program, plan: str, file: str) -> str:
    """The command that records the times that a program needs into a file. `plan` are its words for `ssdsl profile`."""
    kernels = " --kernels compiled" if program.kernels is Kernels.COMPILED else ""
    return f"ssdsl profile --model {program.graph.name} {plan}{kernels} --out {file}"


def digest(program: Program) -> str:
    """A hash that is equal for programs whose functions have the same names and run the same kernels."""
    facts = ProgramIndex(program)
    words = [[f.name, *(kernel_key(facts, f, called) for called in f.called())] for f in program.functions]
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
