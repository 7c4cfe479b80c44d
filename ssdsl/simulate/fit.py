"""Which costs of a file are for a program: its own tasks' times, else a profile's; what does not fit is refused."""

import hashlib
from collections.abc import Iterator

from ssdsl.ir.program import Program
from ssdsl.simulate.collectives import Facts
from ssdsl.simulate.costs import Costs
from ssdsl.simulate.errors import CoresShared, MachinesMixed, ProfileLacks, TasksMisfit
from ssdsl.simulate.kernel_key import kernel_key
from ssdsl.simulate.measured import Measured
from ssdsl.simulate.profile import Machine, Profile
from ssdsl.simulate.profiled import Profiled
from ssdsl.simulate.read_costs import CostsFile
from ssdsl.text.diagnostic import PlanError


def costs_for(program: Program, found: CostsFile, command: str) -> Costs:
    """The costs of a program by a file. `command` records a profile that would do.

    Raises PlanError: the file has the times of another program's tasks, or a profile that lacks what this one needs.
    """
    times, profile = found.times, found.profile
    is_own = found.program == digest(program)
    if profile is not None and not is_own:
        return _profiled(program, found, command)
    if times.tasks and not is_own:
        _check_tasks(program, found, command)
    return Measured(program, times)


def digest(program: Program) -> str:
    """The same for programs whose functions run the same under the same names."""
    facts = Facts(program)
    words = [[f.name, *(kernel_key(facts, f, instr) for instr in f.body())] for f in program.functions]
    return hashlib.sha256(repr((words, [r.name for r in program.roles])).encode()).hexdigest()[:16]


def _profiled(program: Program, found: CostsFile, command: str) -> Costs:
    profile = found.profile
    assert profile is not None
    machine, here = profile.machine, max(1.0, program.plan.devices / profile.machine.cores)
    if here != machine.sharing:
        raise PlanError(CoresShared(None, found.file, machine.processes, machine.cores, program.plan.devices, command))
    if missing := lacking(program, profile):
        raise PlanError(ProfileLacks.of(found.file, missing, profile.sources, command))
    return Profiled(Facts(program), profile)


def lacking(program: Program, profile: Profile) -> tuple[str, ...]:
    """What a profile has no time for, of all that a program does."""
    costs = Profiled(Facts(program), profile)
    for role in program.roles:
        for action in dict.fromkeys(role.actions):
            costs.of(action, role)
    return tuple(costs.lacking)


def check_machine(file: str, known: Machine, found: Machine) -> None:
    """Raise PlanError where the times of two machines would be mixed, or those of ranks that share cores in another
    way."""
    facts = ("device", "torch", "threads", "cores", "sharing")
    unlike = [name for name in facts if getattr(known, name) != getattr(found, name)]
    if unlike:
        was, now = (str(getattr(machine, unlike[0])) for machine in (known, found))
        raise PlanError(MachinesMixed(None, file, unlike[0], was, now))


def _check_tasks(program: Program, found: CostsFile, command: str) -> None:
    """Times of single tasks are those of this program's, or of no program at all."""
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
