"""Checks that no deadlock occurs: runs the roles side by side, each as far as it can go.

A message arrives once all roles at its ends have posted it, and it is the oldest in its lane and direction on each of
them: messages forward and gradients back travel in separate groups, each in order. This is rendezvous: nothing is
buffered. A task, a reduction or a gather with collectives over devices of several roles waits until all of them are
there.
"""

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import assert_never

from ssdsl.ir.action import Compute, Free, GatherParam, ScatterGrads, Start, StartReduce, Update, Wait, WaitReduce
from ssdsl.ir.comm import travels
from ssdsl.ir.function import Function, OpPart, Reshard
from ssdsl.ir.layout import Submesh
from ssdsl.ir.param import AllReduceGrads, CompletionStep, FlatParam, GatherGrads, ReduceScatterGrads
from ssdsl.plan.plan import Phase
from ssdsl.prove.facts import ProofFacts
from ssdsl.prove.failures import Rule
from ssdsl.prove.roles.devices import Share, share

Event = Hashable
Channel = Hashable
Roles = tuple[int, ...]
Post = tuple[Event, Roles]
Meeting = Compute | GatherParam | ScatterGrads | StartReduce | WaitReduce  # roles run them together


@dataclass(slots=True)
class _State:
    """The state of a role: the number of its next action (`at`); by channel, the events that it has posted and that are
    not done, oldest first, each with the roles that take part; how often it has scattered each flat parameter."""

    at: int = 0
    posted: dict[Channel, deque[Post]] = field(default_factory=dict)
    counts: dict[Event, int] = field(default_factory=dict)
    met: Event | None = None  # the meeting at which it waits for other roles


def check_deadlock(facts: ProofFacts) -> None:
    """Adds a failure if the roles cannot all reach their ends."""
    program = facts.program
    world = _World(facts)
    states = [_State() for _ in program.roles]
    ready = deque(range(len(states)))
    while ready:
        number = ready.popleft()
        woken = world.advance(number, states)
        ready.extend(n for n in woken if n not in ready)
    stuck = [n for n, s in enumerate(states) if s.at < len(program.roles[n].actions)]
    if stuck:
        words = "; ".join(f"`{program.roles[n].name}` at {program.roles[n].actions[states[n].at]}" for n in stuck[:4])
        facts.failures.add(
            Rule.DEADLOCK, "the roles", "", "all reach their ends", words, program.roles[stuck[0]].submesh.mesh.span
        )


class _World:
    """The roles that take part in each event, and the events that are done."""

    def __init__(self, facts: ProofFacts) -> None:
        self.facts, self.program = facts, facts.program
        self.done: set[Event] = set()
        self._roles: dict[Submesh, Roles] = {}
        self._ends = [
            tuple(dict.fromkeys((*self.roles(m.source), *self.roles(m.target)))) for m in self.program.messages
        ]
        self._together = {f.number: self._crossing(f) for f in self.program.functions}

    def roles(self, submesh: Submesh) -> Roles:
        """The numbers of the roles on a submesh."""
        if submesh not in self._roles:
            roles = self.program.roles
            self._roles[submesh] = tuple(k for k, r in enumerate(roles) if share(r.submesh, submesh) is Share.ALL)
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
                if isinstance(instr, Reshard):
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

    def advance(self, number: int, states: list[_State]) -> set[int]:
        """Runs a role until it has to wait; returns the roles that may go on because of that."""
        state, woken = states[number], set[int]()
        actions = self.program.roles[number].actions
        while state.at < len(actions):
            action = actions[state.at]
            match action:
                case Start():
                    lane = self._lane(action.message), action.gradient
                    post = (action.message, action.at, action.gradient), self._ends_of(action.message)
                    woken |= self._posted(lane, post, number, states)
                case StartReduce() if (flat := self._flat(action.flat)) and flat.completion.is_background:
                    woken |= self._posted("reductions", self._reduction(flat), number, states)
                case Wait():
                    if (action.message, action.at, action.gradient) not in self.done:
                        break
                case Compute() | GatherParam() | ScatterGrads() | StartReduce() | WaitReduce():
                    if not self._is_met(action, number, states, woken):
                        break
                case Free() | Update():
                    pass
                case _:
                    assert_never(action)
            if isinstance(action, ScatterGrads):
                state.counts[action.flat] = state.counts.get(action.flat, 0) + 1
            state.at += 1
            state.met = None
        return woken - {number}

    def _is_met(self, action: Meeting, number: int, states: list[_State], woken: set[int]) -> bool:
        """Whether a role may go on with an action that waits, or that it does together with others. Adds the roles that
        may then go on to `woken`."""
        state = states[number]
        flat = self._flat(action.flat) if isinstance(action, WaitReduce) else None
        if flat is not None and flat.completion.is_background:
            event, members = self._reduction(flat)
            if members and event not in self.done:
                return False
        meeting = self._meets(action, state)
        if meeting is None or meeting[0] in self.done:
            return True
        state.met, members = meeting
        if any(states[m].met != state.met for m in members):
            return False
        self.done.add(state.met)
        woken |= {*members}
        return True

    def _posted(self, channel: Channel, post: Post, number: int, states: list[_State]) -> set[int]:
        """Posts an event, unless no roles have to take part in it: then it is done at once. It waits behind an older
        event of its channel. Returns the roles that may go on."""
        if not post[1]:
            return set()
        queue = states[number].posted.setdefault(channel, deque())
        queue.append(post)
        return self._arrivals(channel, number, states) if len(queue) == 1 else set()

    def _arrivals(self, channel: Channel, number: int, states: list[_State]) -> set[int]:
        """Completes events of a channel while all their members have them in front, beginning with the front of a role.
        Returns the roles that may go on."""
        woken: set[int] = set()
        look = {number}
        while look:
            queue = states[look.pop()].posted.get(channel)
            if not queue:
                continue
            event, all_of = queue[0]
            fronts = [states[m].posted.get(channel) for m in all_of]
            if all(f and f[0][0] == event for f in fronts):
                for f in fronts:
                    assert f
                    f.popleft()
                self.done.add(event)
                woken.update(all_of)
                look.update(all_of)
        return woken

    # -- events ------------------------------------------------------------------------------------------------------

    def _lane(self, number: int) -> int:
        return self.program.messages[number].lane if number in range(len(self.program.messages)) else 0

    def _ends_of(self, number: int) -> Roles:
        return self._ends[number] if number in range(len(self._ends)) else ()

    def _reduction(self, flat: FlatParam) -> Post:
        """The last reduction of a flat parameter, and the roles that take part in it."""
        awaited = flat.completion.awaited
        return ("reduce", flat.number), self._meeting(flat, [s for s in flat.completion.once if s not in awaited])

    def _meeting(self, flat: FlatParam, steps: Iterable[CompletionStep]) -> Roles:
        """The roles that take part in steps of a completion on the flat parameter's own devices; none if each runs
        them alone."""
        together = AllReduceGrads | ReduceScatterGrads | GatherGrads
        axes = {a for step in steps if isinstance(step, together) for a in step.axes}
        return self.roles(flat.submesh) if self._spans(flat.submesh, axes) else ()

    def _meets(self, action: Meeting, state: _State) -> Post | None:
        """The collective of an action, with the roles that must join it; None if it needs no other role."""
        if isinstance(action, Compute):
            if action.function not in self._together:
                return None
            forward, backward = self._together[action.function]
            function = self.program.functions[action.function]
            meets = forward if action.phase is Phase.FORWARD else backward
            return (action, self.roles(function.submesh)) if meets else None
        flat = self._flat(action.flat)
        if flat is None:
            return None
        event: Event = action
        match action:
            case GatherParam():
                axes = set(flat.sharded.optimizer) - set(flat.sharded.weights)
                members = self.roles(flat.submesh) if self._spans(flat.submesh, axes) else ()
            case ScatterGrads():
                event = action, state.counts.get(action.flat, 0)
                members = self._meeting(flat, flat.completion.each)
            case StartReduce():
                members = self._meeting(flat, flat.completion.once)
            case WaitReduce() if flat.completion.tied:
                event = "tied", flat.weights
                members = tuple(dict.fromkeys(k for s in flat.completion.tied for k in self.roles(s)))
            case WaitReduce():
                members = self._meeting(flat, flat.completion.awaited)
        return (event, members) if members else None

    def _flat(self, number: int) -> FlatParam | None:
        flats = self.program.flats
        return flats[number] if number in range(len(flats)) else None
