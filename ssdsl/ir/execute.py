"""Discrete-event execution of roles: each takes its steps in order, and waits where a step needs others.

The simulator runs a program's roles with it; `steps.py` turns their actions into steps. The check for deadlock
(`prove/roles/deadlock.py`) has an engine of its own. The role with the earliest clock goes first, so that messages on
one link travel in the order in which they become ready.
"""

import bisect
import heapq
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from ssdsl.ir.program import Traced
from ssdsl.record import Record
from ssdsl.text.diagnostic import InternalError

Roles = tuple[int, ...]


class TimedAction(Protocol):
    """The cost of an action: it occupies its roles, or a link, for `time_s` seconds. Data that has left a link arrives
    `latency_s` seconds later, and occupies nothing in between. A role computes for the first `compute_s` seconds;
    `slowed` is the cost with more of these."""

    @property
    def time_s(self) -> float: ...

    @property
    def compute_s(self) -> float: ...

    def slowed(self, by_s: float) -> Self: ...

    @property
    def latency_s(self) -> float: ...


Cost = TypeVar("Cost", bound=TimedAction)


# -- steps -------------------------------------------------------------------------------------------------------------


class Meet(NamedTuple):
    """A step that `roles` do together, once the last of them is there; with one role, alone. The steps of one meeting
    have the same key in every role."""

    action: Traced
    key: Hashable
    roles: Roles


class Post(NamedTuple):
    """One end of an exchange. The role continues at once; if the post `blocks`, a source continues when its data has
    left. The data leaves when all `sources` have posted, and not before it can arrive at a posted target.

    A role sends one message at a time, whoever receives it, and receives one at a time: its link carries both ways at
    once. Collectives in one `lane` run one after another, beside messages. A post within a task in front of it came
    `earlier_s` seconds before that ended.
    """

    action: Traced
    key: Hashable
    sources: Roles
    targets: Roles
    lane: Hashable = None
    blocks: bool = False
    earlier_s: float = 0.0


class Await(NamedTuple):
    """Blocks until an exchange has arrived at this role. `sources` are the roles that must post it. What a task needs
    in its middle is awaited in front of it: it may arrive `later_s` seconds after that.
    """

    action: Traced
    key: Hashable
    sources: Roles
    later_s: float = 0.0


Step = Meet | Post | Await


class Steps(Record):
    """The steps of all roles, with their names; `describe` puts an action in words."""

    names: tuple[str, ...]
    of_role: tuple[tuple[Step, ...], ...]
    describe: Callable[[Traced], str] = str


# -- the trace ---------------------------------------------------------------------------------------------------------


class ActionPart(Enum):
    """The part of an action that an interval shows."""

    RUN = "run"
    SENT = "sent"  # a message leaves its source
    RECEIVED = "received"  # ... and arrives at its target, a latency later


class Interval(NamedTuple, Generic[Cost]):
    """An action of a role, in seconds from the start of the step."""

    role: int
    action: Traced
    start: float
    end: float
    cost: Cost
    part: ActionPart = ActionPart.RUN


class Stall(NamedTuple):
    """The time for which a role waited in an action: until `came` for the role `last`, which posted or met later than
    all others, and then for the data, which left its link from `left` on. Before `asked` the data could not have left,
    as it would not have met this role's post."""

    role: int
    action: Traced
    start: float
    end: float
    last: int
    came: float
    left: float
    asked: float = 0.0

    @property
    def on_its_way(self) -> tuple[float, float]:
        """The part of this time during which the data was being transferred."""
        return min(self.end, max(self.start, self.left)), self.end


OfRole = TypeVar("OfRole", bound=Interval[Any] | Stall)


@dataclass
class Trace(Generic[Cost]):
    """The result of an execution. `flows` are pairs of positions in `intervals`: a message where it is sent, and where
    it arrives. `stalls` are in an order in which each comes after those that delayed it; `ended` are the roles'
    ends."""

    intervals: list[Interval[Cost]] = field(default_factory=list)
    flows: list[tuple[int, int]] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)

    @cached_property
    def ran(self) -> list[list[Interval[Cost]]]:
        """The intervals of each role, once all roles have ended."""
        return by_role(self.intervals, len(self.ended))


def by_role(found: Sequence[OfRole], roles: int) -> list[list[OfRole]]:
    """The intervals, or the stalls, of each role."""
    own: list[list[OfRole]] = [[] for _ in range(roles)]
    for x in found:
        own[x.role].append(x)
    return own


# -- the engine --------------------------------------------------------------------------------------------------------


def execute(
    steps: Steps, cost: Callable[[int, Traced], Cost], contention: Sequence[float] | None = None
) -> Trace[Cost]:
    """Runs all roles to their ends; `cost` gives the cost of an action on a role. While the links of a role carry
    something for it, it computes more slowly by its share of `contention`: what takes a second alone then takes 1 plus
    that share.

    Raises InternalError with the roles that wait for each other, if some never reach their ends.
    """
    return _Execution(steps, cost, contention or [0.0] * len(steps.of_role)).all()


def slowdown_s(work_s: float, start: float, carried: Iterable[tuple[float, float]], contention: float) -> float:
    """The seconds by which work from `start` on takes longer, while links carry something at these times, in the order
    of their starts. It is 0 if they carry nothing meanwhile.

    >>> slowdown_s(3.0, 10.0, [(0.0, 10.5), (11.0, 13.0), (12.0, 12.5)], contention=1.0)
    1.25
    """
    now, left, more = start, work_s, 0.0
    for begin, end in carried:
        alone = max(0.0, begin - now)
        if alone >= left:
            break
        both = min((left - alone) * (1 + contention), max(0.0, end - now - alone))
        done = both / (1 + contention)
        now, left, more = now + alone + both, left - alone - done, more + both - done
    return more


@dataclass(slots=True)
class _Exchange(Generic[Cost]):
    """A running exchange: the roles that have posted it, each with the time; the started journeys, by target, and when
    the first of them `left`; the roles that wait for it."""

    posted: dict[int, float] = field(default_factory=dict)
    journeys: dict[int, Interval[Cost]] = field(default_factory=dict)
    left: float | None = None
    waiting: list[int] = field(default_factory=list)


class _Running(NamedTuple, Generic[Cost]):
    """What roles run together: the step, where its intervals begin in the trace, its start, and its cost without
    contention."""

    step: Meet
    first: int
    start: float
    cost: Cost


class _Execution(Generic[Cost]):
    def __init__(self, steps: Steps, cost: Callable[[int, Traced], Cost], contention: Sequence[float]) -> None:
        self.steps, self.cost, self.contention = steps, cost, contention
        count = len(steps.of_role)
        self.carried: list[list[tuple[float, float]]] = [[] for _ in range(count)]  # by a role's links, from now on
        self.running: list[_Running[Cost] | None] = [None] * count
        self.clock, self.position = [0.0] * count, [0] * count
        self.meetings: defaultdict[Hashable, dict[int, float]] = defaultdict(dict)
        self.exchanges: defaultdict[Hashable, _Exchange[Cost]] = defaultdict(_Exchange)
        # when a link is free that comes to a role, by lane (None: of messages), or that goes "out" of it
        self.free: defaultdict[tuple[Hashable, int], float] = defaultdict(float)
        self.ready = [(0.0, r) for r in range(count)]  # a heap, by clock
        self.trace: Trace[Cost] = Trace()

    def all(self) -> Trace[Cost]:
        """Runs all roles to their ends. Raises InternalError if some never reach them."""
        while self.ready:
            self._run_from(heapq.heappop(self.ready)[1])
        if blocked := self._blocked():
            raise InternalError(self._cycle(blocked))
        self.trace.ended = self.clock
        return self.trace

    def _run_from(self, r: int) -> None:
        """Runs a role until it has to wait or has ended; when another one is behind it, that one takes its place."""
        ready, clock, position, of_role = self.ready, self.clock, self.position, self.steps.of_role
        while position[r] < len(of_role[r]):
            if ready and ready[0][0] < clock[r]:
                r = heapq.heapreplace(ready, (clock[r], r))[1]
                continue
            self.running[r] = None
            match of_role[r][position[r]]:
                case Meet() as step:
                    woken = self._meet(r, step)
                case Post() as step:
                    woken = self._post(r, step)
                case Await() as step:
                    woken = self._await(r, step)
            if woken is None:
                return
            for other in woken:
                heapq.heappush(ready, (clock[other], other))

    def _meet(self, r: int, step: Meet) -> Sequence[int] | None:
        """A collective: it starts when its last role has arrived, and takes as long as its slowest role. None: the role
        has to wait for others."""
        if len(step.roles) == 1:
            self._run(step, self.clock[r], self.cost(r, step.action))
            return ()
        here = self.meetings[step.key]
        here[r] = self.clock[r]
        if len(here) < len(step.roles):
            return None
        del self.meetings[step.key]
        cost = max((self.cost(m, step.action) for m in step.roles), key=lambda c: c.time_s)
        last = max(here, key=lambda m: here[m])
        start = here[last]
        for m in step.roles:
            if here[m] < start:
                self.trace.stalls.append(Stall(m, step.action, here[m], start, last, start, start))
        self._run(step, start, cost)
        return [m for m in step.roles if m != r]

    def _run(self, step: Meet, start: float, cost: Cost) -> None:
        running = _Running(step, len(self.trace.intervals), start, cost)
        for m in step.roles:
            if self.carried[m]:
                self.carried[m] = [times for times in self.carried[m] if times[1] > start]
            self.position[m] += 1
            self.running[m] = running
        self._time(running)

    def _time(self, running: _Running[Cost]) -> None:
        """Sets the end of what runs, and its cost, by what the links of its roles carry meanwhile. The slowest role
        counts."""
        (action, _, roles), first, start, cost = running
        work_s, carried, shares = cost.compute_s, self.carried, self.contention
        slower = [slowdown_s(work_s, start, carried[m], shares[m]) for m in roles if carried[m]]
        if more_s := max(slower, default=0.0):
            cost = cost.slowed(more_s)
        end = start + cost.time_s
        for m in roles:
            self.clock[m] = end
        self.trace.intervals[first : first + len(roles)] = [Interval(m, action, start, end, cost) for m in roles]

    def _carry(self, r: int, start: float, end: float) -> None:
        """Notes that the links of a role carry something. What it runs now may take longer: its other roles have come
        as far as this one, and take no further step before the role that has just posted."""
        if not self.contention[r] or end <= start:
            return
        bisect.insort(self.carried[r], (start, end))
        if (running := self.running[r]) is not None and start < self.clock[r]:
            self._time(running)

    def _post(self, r: int, step: Post) -> Sequence[int]:
        exchange = self.exchanges[step.key]
        posted = exchange.posted
        posted[r] = self.clock[r] - step.earlier_s
        self.position[r] += 1
        if step.blocks and r in step.sources and (time := self.cost(r, step.action).time_s):
            now = self.clock[r]
            self.clock[r] = now + time
            self.trace.stalls.append(Stall(r, step.action, now, now + time, r, now, now))
        if not all(map(posted.__contains__, step.sources)):
            return ()
        for target in step.targets:
            if target in posted and target not in exchange.journeys:
                exchange.journeys[target] = self._travel(step, target, exchange)
        woken, exchange.waiting = exchange.waiting, []
        return woken

    def _travel(self, step: Post, target: int, exchange: _Exchange[Cost]) -> Interval[Cost]:
        """The journey to a target: it starts once all sources have posted, the links are free, and the target will have
        posted when the first byte arrives. A message's journeys to several targets leave together."""
        posted, intervals, cost = exchange.posted, self.trace.intervals, self.cost(target, step.action)
        is_message, latency, links = step.sources != step.targets, cost.latency_s, [(step.lane, target)]
        if exchange.left is None:
            ready = max([posted[s] for s in step.sources])
            links += [("out", s) for s in step.sources if is_message]
        else:
            ready = exchange.left
        start = max(ready, posted[target] - latency, *[self.free[link] for link in links])
        end = start + cost.time_s
        for link in links:
            self.free[link] = end
        if exchange.left is None:
            exchange.left = start
        self._carry(target, start + latency, end + latency)
        if is_message:
            if exchange.left == start:
                for source in step.sources:
                    self._carry(source, start, end)
            self.trace.flows.append((len(intervals), len(intervals) + 1))
            intervals.append(Interval(step.sources[0], step.action, start, end, cost, ActionPart.SENT))
        journey = Interval(target, step.action, start + latency, end + latency, cost, ActionPart.RECEIVED)
        intervals.append(journey)
        return journey

    def _await(self, r: int, step: Await) -> Sequence[int] | None:
        exchange, now = self.exchanges[step.key], self.clock[r]
        if (journey := exchange.journeys.get(r)) is None:
            exchange.waiting.append(r)
            return None
        needed = journey.end - step.later_s
        if needed > now:
            last = max(step.sources, key=lambda s: exchange.posted[s])
            latency = journey.cost.latency_s
            came, left, asked = exchange.posted[last], journey.start - latency, max(0.0, exchange.posted[r] - latency)
            self.trace.stalls.append(Stall(r, step.action, now, needed, last, came, left, asked))
            self.clock[r] = needed
        self.position[r] += 1
        return ()

    # -- deadlock ------------------------------------------------------------------------------------------------------

    def _blocked(self) -> dict[int, Step]:
        """The roles that have not reached their ends, with the steps in which they wait."""
        steps = enumerate(zip(self.steps.of_role, self.position, strict=True))
        return {r: own[position] for r, (own, position) in steps if position < len(own)}

    def _cycle(self, waiting: Mapping[int, Step]) -> str:
        """The message of a deadlock: the chain of roles that wait for each other, until a role repeats, or one is done
        without that step."""
        missing = {r: min(self._missing(step), default=r) for r, step in waiting.items()}
        path: list[int] = []
        role = min(waiting)
        while role in waiting and role not in path:
            path.append(role)
            role = missing[role]
        cycle = path[path.index(role) :] if role in path else path
        names, describe = self.steps.names, self.steps.describe
        lines = [f"{names[r]} waits for {names[missing[r]]} in {describe(waiting[r].action)}" for r in cycle]
        return "roles wait for each other, and none can go on:\n" + "\n".join(lines)

    def _missing(self, step: Step) -> set[int]:
        """The roles for which a blocked step still waits."""
        match step:
            case Meet():
                return set(step.roles) - self.meetings.get(step.key, {}).keys()
            case Await() | Post():
                return set(step.sources) - self.exchanges[step.key].posted.keys()
