"""Discrete-event simulation of a program. A task starts when its inputs have arrived.

A message travels while its devices compute, and so do the gradients of a flat parameter from the task behind which they
are complete, where devices have hands free for it: as fast as if nothing else used the links, and without slowing the
computing. Roles stand for all of their devices, so a step on a thousand devices costs what its roles do.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from ssdsl.ir import execute
from ssdsl.ir.action import Action, Compute, GatherParam, Start, StartReduce, Update, WaitReduce
from ssdsl.ir.program import Members, Program
from ssdsl.ir.steps import steps_of
from ssdsl.simulate.costs import Cost, Costs

Interval = execute.Interval[Cost]
Trace = execute.Trace[Cost]


def run(program: Program, costs: Costs, *, overlaps: bool = True, blocks: bool = False) -> Trace:
    """One step. Without `overlaps` gradients are reduced when all tasks are done: where ranks are processes on the
    cores of one machine, what communicates takes the time of what computes, so that the background hides nothing. If
    it `blocks`, a device that sends waits until that is sent.

    Raises InternalError where roles wait for each other (the compiler has checked that none does).
    """
    cost, members = _cached(program, costs), Members(program.roles)

    def meets(action: Compute) -> bool:
        """Whether a task has collectives."""
        submesh = program.functions[action.function].submesh
        return any(cost(r, action).communication_s for r in members[submesh])

    parts = program.roles, program.functions, program.messages, program.flats
    steps = steps_of(*parts, meets=meets, overlaps=overlaps, blocks=blocks)
    return execute.execute(steps, cost)


def _cached(program: Program, costs: Costs) -> Callable[[int, Action], Cost]:
    """Tasks of a function in a phase cost the same, and so do the journeys of a message in a direction."""
    found: dict[Hashable, Cost] = {}

    def cost(r: int, action: Action) -> Cost:
        key: Hashable
        match action:
            case Compute():
                key = r, action.function, action.phase
            case Start():
                key = action.message, action.gradient
            case _:
                key = r, action
        if key not in found:
            found[key] = costs.of(action, program.roles[r])
        return found[key]

    return cost


def by_role(intervals: list[Interval], roles: int) -> list[list[Interval]]:
    """What happened, role by role."""
    found: list[list[Interval]] = [[] for _ in range(roles)]
    for x in intervals:
        found[x.role].append(x)
    return found


# -- behind the tasks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What a role does behind its last task, which ends at `start`: until `updates` gradients are completed, then the
    optimizer steps, and the weights that others updated are gathered until `end`, for `gather_s` seconds. `reduces` are
    the times in which it did nothing but reduce gradients, also between tasks."""

    start: float
    updates: float
    end: float
    gather_s: float
    reduces: tuple[tuple[float, float], ...]

    @property
    def reduce_s(self) -> float:
        """The part of `reduces` behind the last task."""
        return sum(end - max(start, self.start) for start, end in self.reduces if end > self.start)


def epilogues(program: Program, trace: Trace) -> list[Epilogue]:
    """The end of each role's step."""
    roles = len(program.roles)
    own = zip(by_role(trace.intervals, roles), by_role(trace.waits, roles), trace.ended, strict=True)
    return [_epilogue(ran, waits, ended) for ran, waits, ended in own]


def _epilogue(intervals: list[Interval], waits: list[Interval], ended: float) -> Epilogue:
    ran = [x for x in intervals if x.part is execute.Part.RUN]
    start = max((x.end for x in ran if isinstance(x.action, Compute)), default=0.0)
    gathered = sum(x.cost.time_s for x in ran if isinstance(x.action, GatherParam))
    reduces = [(x.start, x.end) for x in ran if isinstance(x.action, StartReduce | WaitReduce)]
    reduces += [(x.start, x.end) for x in waits if isinstance(x.action, WaitReduce)]
    updates = ended
    for x in (x for x in ran if isinstance(x.action, Update)):
        updates = x.start + x.cost.communication_s
        reduces.append((x.start, updates))
    merged: list[tuple[float, float]] = []
    for begin, end in sorted((a, b) for a, b in reduces if b > a):
        if merged and merged[-1][1] == begin:
            merged[-1] = merged[-1][0], end
        else:
            merged.append((begin, end))
    return Epilogue(start, updates, ended, gathered, tuple(merged))
