"""Discrete-event simulation of a program. A task starts when its inputs have arrived.

A message is sent and received while its devices compute. Messages of one link leave one after another, and each arrives
a latency later, so the latencies of several messages overlap. The gradients of a flat parameter are also reduced while
devices compute, once they are complete, if devices can communicate in the background: as fast as if nothing else used
the links. So are weights gathered that other devices have updated: the step is one of many, and begins with the gathers
of the step before. Computing beside communication is slower by the device's `contention`. A role stands for all of its
devices, so the work of simulating a step depends on the number of roles, not of devices.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from itertools import accumulate

from ssdsl.ir import execute
from ssdsl.ir.param import FlatParam
from ssdsl.ir.program import (
    Compute,
    GatherParam,
    Members,
    Program,
    ScatterGrads,
    Start,
    StartReduce,
    Traced,
    Travel,
    Update,
    WaitReduce,
)
from ssdsl.ir.steps import steps_of
from ssdsl.plan.plan import Phase
from ssdsl.plan.regions import merged
from ssdsl.record import Record
from ssdsl.simulate.price.costs import Cost, Costs

Interval = execute.Interval[Cost]
Trace = execute.Trace[Cost]


def run(
    program: Program,
    costs: Costs,
    *,
    overlaps: bool = True,
    blocks: bool = False,
    contention: Sequence[float] | None = None,
) -> Trace:
    """The trace of one step; `contention` is the share by which each role computes more slowly while its links carry
    something, none by default. Without `overlaps` gradients are reduced after all tasks: if ranks are processes on the
    cores of one machine, communication takes time from computing, so that the background hides nothing. With `blocks` a
    device that sends waits until the message has left.

    Raises InternalError if roles wait for each other in a circle; the proof has checked that none does.
    """
    cost, members = _cached(program, costs), Members(program.roles)

    def meets(action: Compute) -> bool:
        """Whether a task has collectives."""
        submesh = program.functions[action.function].submesh
        return any(cost(r, action).communication_s for r in members[submesh])

    @cache
    def shares(r: int, number: int, phase: Phase) -> list[float]:
        """For each section of a function, the share of a role's phase that the sections before it take: a forward runs
        that long before it comes there, a backward behind it."""
        seconds = [0.0, *accumulate(costs.of_sections(program.functions[number], program.roles[r], phase))]
        return [before / (seconds[-1] or 1.0) for before in seconds[:-1]]

    def behind_s(r: int, task: Compute, flat: FlatParam) -> float:
        section = program.functions[task.function].first_read(flat.weights).section
        return cost(r, task).time_s * shares(r, task.function, Phase.BACKWARD)[section]

    def before_s(r: int, task: Compute, section: int) -> float:
        """With what the links slow: they carry weights until those arrive for which this is asked."""
        slower = 1.0 + (contention[r] if contention is not None else 0.0)
        return cost(r, task).time_s * shares(r, task.function, Phase.FORWARD)[section] * slower

    steps = steps_of(
        program.roles,
        program.functions,
        program.messages,
        program.flats,
        meets=meets,
        behind_s=behind_s,
        before_s=before_s,
        overlaps=overlaps,
        blocks=blocks,
    )
    return execute.execute(steps, cost, contention)


def _cached(program: Program, costs: Costs) -> Callable[[int, Traced], Cost]:
    """A cached function for the cost of an action on a role: all tasks of a function in a phase cost the same, and so
    do all parts of a message in a direction. Where weights stay, the first of some tasks gathers them for others."""
    found: dict[Hashable, Cost] = {}
    stay = any(flat.kept is not None for flat in program.flats)

    def cost(r: int, action: Traced) -> Cost:
        key: Hashable
        match action:
            case Compute():
                key = r, action.function, action.phase, action.at if stay else ()
            case Start():
                key = action.message, action.gradient
            case Travel():
                key = r, *action._replace(at=())
            case _:
                key = r, action
        if (known := found.get(key)) is None:
            known = found[key] = costs.of(action, program.roles[r])
        return known

    return cost


# -- after the tasks ---------------------------------------------------------------------------------------------------


REDUCING = (ScatterGrads, StartReduce, WaitReduce)


class Epilogue(Record):
    """The end of a role's step, after its last task, which ends at `start`. Gradients are completed until `updates`;
    then the optimizer's step runs until `end`, and where nothing hides them the gathers of weights that others updated,
    which take `gather_s` seconds. `reduces` are the intervals in which it did nothing but reduce gradients, also
    between tasks."""

    start: float
    updates: float
    end: float
    gather_s: float
    reduces: tuple[tuple[float, float], ...]

    @property
    def reduce_s(self) -> float:
        """The part of `reduces` after the last task."""
        return sum(end - max(start, self.start) for start, end in self.reduces if end > self.start)


def epilogues(trace: Trace) -> list[Epilogue]:
    """The end of each role's step."""
    own = zip(trace.ran, execute.by_role(trace.stalls, len(trace.ended)), trace.ended, strict=True)
    return [_epilogue(intervals, stalls, ended) for intervals, stalls, ended in own]


def _epilogue(intervals: list[Interval], stalls: list[execute.Stall], ended: float) -> Epilogue:
    start = next((x.end for x in reversed(intervals) if isinstance(x.action, Compute)), 0.0)
    ran = [x for x in intervals if x.part is execute.ActionPart.RUN and not isinstance(x.action, Compute)]
    gathered = sum(x.cost.time_s for x in ran if isinstance(x.action, GatherParam))
    reduces = [(x.start, x.end) for x in ran if isinstance(x.action, REDUCING)]
    reduces += [x.on_its_way for x in stalls if isinstance(x.action, REDUCING)]
    updates = ended
    for x in (x for x in ran if isinstance(x.action, Update)):
        updates = x.start + x.cost.communication_s
        reduces.append((x.start, updates))
    return Epilogue(start, updates, ended, gathered, merged((a, b) for a, b in reduces if b > a))
