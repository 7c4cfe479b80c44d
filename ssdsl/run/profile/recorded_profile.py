"""Makes a profile from a recorded run: times of operators, of communication and of the engine.

A rank's clock refers to lines of its role's file. The file is generated again here, to map the lines to instructions.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from statistics import mean

from ssdsl.analyse.program_index import ProgramIndex, flat_bytes
from ssdsl.cluster.measure import processor, usable_cores
from ssdsl.codegen.role import RoleFile, role_file
from ssdsl.codegen.scope import Common, FileScope
from ssdsl.ir.function import Backward, Called, Function, Instr
from ssdsl.ir.param import FlatParam
from ssdsl.ir.program import Program, Role
from ssdsl.plan.plan import Phase
from ssdsl.record import replace
from ssdsl.run.profile.recorded import PHASES
from ssdsl.run.results import RankResult, Recorded, RunResult, Spent
from ssdsl.runtime.profile.operator_clock import COLLECTIVE
from ssdsl.simulate.profile.profile import GROWING, IN_A_TASK, Curve, Profile, ProfiledMachine
from ssdsl.simulate.profile.profiled import Profiled, instructions, runs

AGAIN = "R"
OF_FLATS = ("gather", "drop", "scatter")


def recorded_profile(program: Program, result: RunResult, source: str) -> Profile:
    """The profile by the clocks of a run's ranks. `source` says which run it was."""
    found, roles = _Found(ProgramIndex(program)), {role.name for role in program.roles}
    for rank, step in usual_steps(tuple(rank for rank in result.ranks if rank.role in roles)):  # others run no tasks
        found.add(rank, step)
    first = result.ranks[0]
    machine = ProfiledMachine(processor(), version("torch"), first.threads, usable_cores(), len(result.ranks))
    network: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for kind, ranks, size, time_s in (*(x for rank in result.ranks for x in rank.network), *found.collectives):
        network.setdefault((kind, ranks), []).append((size, time_s))
    return Profile(
        machine,
        {words: {name: mean(times) for name, times in phases.items()} for words, phases in found.operators.items()},
        {key: Curve.of(points) for key, points in network.items()},
        {name: Curve.of(found.growing[name]) for name in GROWING if name in found.growing},
        mean(found.steps) if found.steps else 0.0,
        (source,),
    )


@dataclass
class _Found:
    """The times of a program's ranks, merged."""

    facts: ProgramIndex
    operators: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    growing: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    steps: list[float] = field(default_factory=list)
    collectives: list[tuple[str, int, int, float]] = field(default_factory=list)
    _lines: "dict[str, Lines]" = field(default_factory=dict)

    @property
    def program(self) -> Program:
        return self.facts.program

    @cached_property
    def costs(self) -> Profiled:
        return Profiled(self.facts, Profile(ProfiledMachine("", "", 1, 1, 1)))

    def add(self, rank: RankResult, step: Sequence[Spent]) -> None:
        """Adds one rank's step."""
        role = next(r for r in self.program.roles if r.name == rank.role)
        if rank.role not in self._lines:
            self._lines[rank.role] = Lines.of(self.program, role)
        lines = self._lines[rank.role]
        engine: dict[tuple[int, Phase], list[tuple[float, ...]]] = {}
        ran: dict[tuple[int, Phase], dict[Called, list[tuple[float, ...]]]] = {}
        for spent in step:
            phase = self._phase(spent)
            if phase is None:
                self._add_other(spent, role)
                continue
            called = lines.called(spent)
            if (called is not None and spent.what == AGAIN) or phase is Phase.AGAIN:
                continue  # this is a forward's time, which other tasks measure better
            if called is None:
                engine.setdefault((spent.number, phase), []).append(spent.times_s)
                continue
            ran.setdefault((spent.number, phase), {}).setdefault(called, []).append(spent.times_s)
        for (number, phase), those in ran.items():
            for called, places in those.items():
                times_s = places[0] if len(places) == 1 else (_of_a_task(places),)
                self._times(self.program.functions[number], called, phase).extend(times_s)
        for (number, phase), places in engine.items():
            function = self.program.functions[number]
            self.growing.setdefault(f"task {phase.word}", []).append((instructions(function), _of_a_task(places)))
            self._add_none(function, phase, ran.get((number, phase), {}))

    def _phase(self, spent: Spent) -> Phase | None:
        """The phase of the task; a forward is recomputed in the backward of the inputs' gradients."""
        if spent.what != AGAIN:
            return PHASES.get(spent.what)
        is_whole = self.program.functions[spent.number].backward is Backward.WHOLE
        return Phase.BACKWARD if is_whole else Phase.DGRAD

    def _times(self, function: Function, called: Called, phase: Phase) -> list[float]:
        words = self.costs.words(function, called)
        return self.operators.setdefault(words, {}).setdefault(phase.word, [])

    def _add_none(self, function: Function, phase: Phase, ran: Collection[Called]) -> None:
        """Adds zero time for instructions for which autograd ran nothing."""
        for called in function.called():
            if called not in ran and runs(function, called, phase):
                self._times(function, called, phase).append(0.0)

    def _add_other(self, spent: Spent, role: Role) -> None:
        time_s, what = mean(spent.times_s), spent.what
        if what == "step":
            self.steps.append(time_s)
        elif what == COLLECTIVE:
            self.collectives.append((IN_A_TASK.format(spent.layer), spent.line, spent.number, time_s))
        elif what in ("first gradient", "next gradient"):
            self.growing.setdefault(what, []).append((spent.number, time_s))
        elif what == "reduce":
            self.growing.setdefault(what, []).extend(_reductions(self.program.flats[spent.number], spent.times_s))
        elif what in OF_FLATS:
            self.growing.setdefault(what, []).append((flat_bytes(self.program.flats[spent.number]), time_s))
        elif what == "update":
            held = sum(flat_bytes(f, f.sharded.optimizer) for f in self.program.flats_of(role))
            self.growing.setdefault(what, []).append((held, time_s))


def _of_a_task(places: Sequence[Sequence[float]]) -> float:
    """The mean seconds of a task that has several places, such as the operators of a run that torch has not
    compiled."""
    return sum(map(sum, places)) / max(map(len, places))


def _reductions(flat: FlatParam, times_s: Sequence[float]) -> Iterator[tuple[int, float]]:
    """Yields the bytes and the seconds of reductions in a step, whose times are in order: one for each that starts with
    a backward (ZeRO-2), then two of the last one, which is started and awaited, or one wait for the others."""
    once = times_s[-2:] if flat.completion.once else ()
    each = times_s[: len(times_s) - len(once)]
    if count := len(each) - (0 if once else 1):
        yield flat_bytes(flat, flat.sharded.weights), sum(each) / count
    if once:
        yield flat_bytes(flat, flat.sharded.grads), sum(once)


@dataclass(frozen=True)
class Lines:
    """The instructions in the lines of a role's file. `wholes` are the compiled runs by each of their operators, and
    `names` the functions of the file that operators are in; both also by the number of the program's function."""

    file: RoleFile
    wholes: dict[tuple[int, Instr], Called]
    names: dict[tuple[int, Instr], str]

    @classmethod
    def of(cls, program: Program, role: Role) -> "Lines":
        scope = FileScope(Common(program), role)
        file = role_file(scope)
        runs = ((f.number, called) for f in program.functions for called in f.called() if isinstance(called, tuple))
        names = {(o.function, o.instr): name for (name, _), found in scope.lines.items() for o in found if not o.calls}
        return cls(file, {(number, op): run for number, run in runs for op in run}, names)

    def called(self, spent: Spent) -> Called | None:
        """The instruction of a line, or the compiled run that it calls or is in; None for a line that calls a layer's
        function, and for the engine."""
        instr = self.file.instructions.get((spent.number, spent.layer, spent.line))
        return instr and self.wholes.get((spent.number, instr), instr)


TASK = re.compile(r"[FABDW]\d+\[")
IN_TASKS = ("F", "A", "B", "D", "W", "R", "first gradient", "next gradient", "gather", "drop", "scatter")


# -- the steps that count, without the clock's own time ----------------------------------------------------------------


def usual_steps(ranks: Sequence[RankResult]) -> Iterator[tuple[RankResult, list[Spent]]]:
    """The times of each rank's places in the steps that count, without the clock's own; empty for a run without clocked
    steps.

    Every second step runs without the clock. So the total of what the clock adds is known, besides its own estimate.
    """
    took = {n: sum(_spent_s(r.clocked[n]) for r in ranks) for n in ranks[0].clocked}
    steps = middle_half(took)
    for rank in ranks if steps else ():
        share = _share(rank, steps)
        for step in steps:
            yield rank, [_scaled(spent, share) for spent in rank.clocked[step]]


def middle_half(took: Mapping[int, float]) -> list[int]:
    """The middle half of the steps by time, which leaves out disturbances by other processes. All steps in it count,
    because in every step some operator is slow by chance.

    >>> middle_half({3: 1.0, 5: 9.0, 7: 1.2, 9: 1.1})
    [9, 7]
    """
    ordered, out = sorted(took, key=lambda n: took[n]), len(took) // 4
    return ordered[out : len(ordered) - out]


def _share(rank: RankResult, steps: Sequence[int]) -> float:
    """The ratio of computing in tasks in steps without the clock to what the clock reports."""
    first = min(rank.clocked)
    plain = {n: _tasks_s(s) for n, s in enumerate(rank.recorded) if n > first and n not in rank.clocked}
    said = mean(sum(sum(s.times_s) for s in rank.clocked[n] if s.what in IN_TASKS) for n in steps)
    return mean(plain[n] for n in middle_half(plain)) / said if plain and said else 1.0


def _tasks_s(step: Sequence[Recorded]) -> float:
    return sum(e.computed_s for e in step if TASK.match(e.name))


def _spent_s(step: Sequence[Spent]) -> float:
    """Seconds of a whole step, without the time of collectives, which counts as communication."""
    return sum(sum(s.times_s) for s in step if s.what != COLLECTIVE)


def _scaled(spent: Spent, share: float) -> Spent:
    if spent.what not in IN_TASKS:
        return spent
    return replace(spent, times_s=tuple(share * time_s for time_s in spent.times_s))
