"""Checks that no deadlock occurs: runs the roles side by side, each as far as it can go.

A message, a reduction, a gather, and a task with collectives over devices of several roles are events: each role waits
at an event until all roles that take part are there. So nothing is buffered, and a role that starts a message does
nothing until it has arrived. Backends are less strict; a GPU may be as strict, as what was started after a message can
be held up until it has arrived.
"""

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

from ssdsl.ir.comm import travels
from ssdsl.ir.function import Conversion, Function, OpPart
from ssdsl.ir.layout import Submesh
from ssdsl.ir.param import CompletionStep, FlatParam, SumTiedGrads
from ssdsl.ir.program import (
    Action,
    Compute,
    DropWeights,
    FlatAction,
    GatherParam,
    KeepWeights,
    OnFlat,
    ScatterGrads,
    Start,
    StartReduce,
    WaitReduce,
)
from ssdsl.prove.facts import ProofFacts
from ssdsl.prove.failures import Rule
from ssdsl.prove.roles.devices import Inside

Event = Hashable
Roles = tuple[int, ...]


class _Meeting(NamedTuple):
    """An action of a role at which it meets other roles."""

    event: Event
    roles: Roles
    action: Action


def check_deadlock(facts: ProofFacts) -> None:
    """Adds a failure if the roles cannot all reach their ends."""
    roles, world = facts.program.roles, _World(facts)
    left = [deque(world.meetings(number)) for number in range(len(roles))]
    ready = deque(range(len(roles)))
    while ready:
        number = ready.popleft()
        while (here := left[number]) and all(left[k] and left[k][0].event == here[0].event for k in here[0].roles):
            met = here[0].roles
            for k in met:
                left[k].popleft()
            ready.extend(k for k in met if k != number)
    stuck = [n for n, meetings in enumerate(left) if meetings]
    if stuck:
        words = "; ".join(f"`{roles[n].name}` at {left[n][0].action}" for n in stuck[:4])
        facts.fail(Rule.DEADLOCK, "the roles", "", "all reach their ends", words, roles[stuck[0]].submesh.mesh.span)


class _World:
    """The roles that take part in each event."""

    def __init__(self, facts: ProofFacts) -> None:
        self.facts, self.program = facts, facts.program
        self._inside = [Inside(role.submesh) for role in self.program.roles]
        self._roles: dict[Submesh, Roles] = {}
        self._ends = [
            tuple(dict.fromkeys((*self.roles(m.source), *self.roles(m.target)))) for m in self.program.messages
        ]
        self._together = {f.number: self._crossing(f) for f in self.program.functions}

    def roles(self, submesh: Submesh) -> Roles:
        """The numbers of the roles on a submesh."""
        if submesh not in self._roles:
            self._roles[submesh] = tuple(k for k, inside in enumerate(self._inside) if inside[submesh])
        return self._roles[submesh]

    def _spans(self, submesh: Submesh, axes: set[str]) -> bool:
        """Whether groups along these axes have devices of several roles."""
        return any(axes & {a for a, _ in self.program.roles[k].submesh.fixed} for k in self.roles(submesh))

    def _crossing(self, function: Function) -> tuple[bool, bool]:
        """Whether a function's forward, and its backward, communicate with other roles."""
        forward: set[str] = set()
        backward: set[str] = set()
        for section in function.sections:
            inside: set[str] = {a for n in section.gathers for a in self.program.flats[n].sharded.weights}
            backward |= inside
            for instr in section.body:
                if isinstance(instr, Conversion):
                    steps = {a for s in instr.forward if travels(s) for a in s.axes}
                    inside |= steps
                    backward |= steps if instr.again else set()
                    backward |= {a for s in instr.backward if travels(s) for a in s.axes}
                elif isinstance(instr, OpPart):
                    inside |= set(instr.kernel.axes)
                    backward |= set(instr.kernel.axes)
            forward |= inside
            backward |= inside if section.recompute else set()
        return self._spans(function.submesh, forward), self._spans(function.submesh, backward)

    # -- one role ----------------------------------------------------------------------------------------------------

    def meetings(self, number: int) -> Iterator[_Meeting]:
        """Yields the actions at which a role meets others, in order."""
        scatters = Counter[int]()  # by flat parameter
        for action in self.program.roles[number].actions:
            event, roles = self._event(action, scatters)
            if len(roles) > 1 and number in roles:
                yield _Meeting(event, roles, action)
            if isinstance(action, ScatterGrads):
                scatters[action.flat] += 1

    # -- events ------------------------------------------------------------------------------------------------------

    def _event(self, action: Action, scatters: Counter[int]) -> tuple[Event, Roles]:
        """The event of an action, and the roles that take part in it; none if it needs no other role. `scatters` are
        those of the role so far."""
        match action:
            case Start():
                ends = self._ends[action.message] if action.message in range(len(self._ends)) else ()
                return (action.message, action.at, action.gradient), ends
            case Compute():
                forward, backward = self._together.get(action.function, (False, False))
                meets = forward if action.phase.is_forward else backward
                return action, self.roles(self.program.functions[action.function].submesh) if meets else ()
            case OnFlat():
                if action.flat in range(len(self.program.flats)):
                    return self._of_flat(action, self.program.flats[action.flat], scatters)
        return action, ()

    def _of_flat(self, action: FlatAction, flat: FlatParam, scatters: Counter[int]) -> tuple[Event, Roles]:
        match action:
            case KeepWeights() | DropWeights():
                return action, ()
            case GatherParam():
                axes = set(flat.sharded.optimizer) - set(flat.sharded.weights)
                return action, self.roles(flat.submesh) if self._spans(flat.submesh, axes) else ()
            case ScatterGrads():
                return ("scatter", action.flat, scatters[action.flat]), self._meeting(flat, flat.completion.each)
            case StartReduce():
                return ("reduce", action.flat), self._meeting(flat, flat.completion.started)
            case WaitReduce() if flat.completion.tied:
                return ("tied", flat.weights), tuple(
                    dict.fromkeys(k for s in flat.completion.tied for k in self.roles(s))
                )
            case WaitReduce():
                return action, self._meeting(flat, flat.completion.awaited)

    def _meeting(self, flat: FlatParam, steps: Iterable[CompletionStep]) -> Roles:
        """The roles that take part in steps of a completion on the flat parameter's own devices; none if each runs
        them alone."""
        own = (step for step in steps if not isinstance(step, SumTiedGrads))
        axes = {a for step in own if travels(step) for a in step.axes}
        return self.roles(flat.submesh) if self._spans(flat.submesh, axes) else ()
