"""Chooses the costs in a file for a program: the times of its own tasks, else a profile; refuses what does not fit."""

import hashlib
from collections.abc import Iterator

from ssdsl.ir.program import Program
from ssdsl.simulate.price.collectives import ProgramIndex
from ssdsl.simulate.price.costs import Costs
from ssdsl.simulate.profile.errors import MachinesMixed, ProfileLacks, TasksMisfit
from ssdsl.simulate.profile.kernel_key import kernel_key
from ssdsl.simulate.profile.measured import Measured
from ssdsl.simulate.profile.profile import Profile, ProfiledMachine
from ssdsl.simulate.profile.profiled import Profiled
from ssdsl.simulate.profile.read_costs import CostsFile
from ssdsl.text.diagnostic import PlanError


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
