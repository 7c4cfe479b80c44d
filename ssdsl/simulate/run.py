"""Acts out a schedule: every role runs its tasks in order, transfers travel while it computes, and what a task needs it
waits for.

This is what the program does (`runtime/engine.py`): a send or a receive is posted where it stands in the order, and
goes on when both ends have posted it; a task waits for what it reads; collectives inside a task bring together the
roles that share it. Roles stand for all of their devices, so a step on a thousand devices costs what its roles do.
"""

from dataclasses import dataclass, field

from ssdsl.lower.layout import Submesh
from ssdsl.lower.needs import Key, Needs
from ssdsl.lower.schedule import Block, Role, Schedule, Task
from ssdsl.plan.plan import Phase
from ssdsl.simulate.costs import Cost, Costs, Tail
from ssdsl.text.diagnostic import InternalError


@dataclass(frozen=True, slots=True)
class Ran:
    """A task of a role, or one end of a transfer, in seconds from the start of the step."""

    role: int
    task: Task
    start: float
    end: float
    cost: Cost
    sends: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """What a role did behind its tasks: completing gradients until `reduced`, then the optimizer until `end`."""

    start: float
    reduced: float
    end: float
    tail: Tail


@dataclass(slots=True)
class Trace:
    """All that ran in a step, and for each transfer the numbers of its ends in `ran`."""

    ran: list[Ran] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    flows: list[tuple[int, int]] = field(default_factory=list)

    def by_role(self, roles: int) -> list[list[Ran]]:
        """What ran, role by role."""
        found: list[list[Ran]] = [[] for _ in range(roles)]
        for x in self.ran:
            found[x.role].append(x)
        return found


def run(schedule: Schedule, costs: Costs) -> Trace:
    """One step. Raises InternalError where roles wait for each other (the compiler has checked that none does)."""
    return _Run(schedule, costs).all()


@dataclass(slots=True)
class _Posted:
    """The ends of a transfer that are there, by role; and when it arrives at each receiving role."""

    sent: dict[int, float] = field(default_factory=dict)
    awaited: dict[int, float] = field(default_factory=dict)
    arrived: dict[int, float] = field(default_factory=dict)


class _Run:
    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        self.schedule, self.costs = schedule, costs
        self.roles = schedule.roles
        self.trace = Trace()
        self.clock = [0.0] * len(self.roles)
        self.position = [0] * len(self.roles)
        self.posted: dict[Key, _Posted] = {}
        self.meetings: dict[Task, dict[int, float]] = {}
        self.waiting: dict[object, set[int]] = {}
        self.links: dict[tuple[int, int, bool], float] = {}
        self._members: dict[Submesh, tuple[int, ...]] = {}
        self.needs = Needs(schedule.blocks, schedule.transfers)
        self._costs: dict[tuple[int, Phase, int], Cost] = {}
        self._transfer_costs: dict[tuple[int, bool], Cost] = {}

    def all(self) -> Trace:
        moving = list(range(len(self.roles)))
        while moving:
            moving += self._go(moving.pop())
        for r, role in enumerate(self.roles):
            if self.position[r] < len(role.tasks):
                raise InternalError(f"{role.name} never gets to {role.tasks[self.position[r]]}")
        self._end()
        return self.trace

    def _go(self, r: int) -> list[int]:
        """Runs a role until it has to wait; gives the roles that can now go on."""
        woken: set[int] = set()
        tasks = self.roles[r].tasks
        while self.position[r] < len(tasks):
            task = tasks[self.position[r]]
            found = self._post(r, task) if task.transfer is not None else self._compute(r, task)
            if found is None:
                break
            woken |= found
        return sorted(woken)

    # -- transfers ---------------------------------------------------------------------------------------------------

    def _post(self, r: int, task: Task) -> set[int] | None:
        """Posts this role's end of a transfer; a signal is awaited at once."""
        assert task.transfer is not None
        transfer, forward = self.schedule.transfers[task.transfer], task.phase is Phase.FORWARD
        key = (task.transfer, task.coordinate, forward)
        source, target = transfer.ends(task.phase)
        posted = self.posted.setdefault(key, _Posted())
        if r in self._roles(source):
            posted.sent.setdefault(r, self.clock[r])
        if r in self._roles(target):
            posted.awaited.setdefault(r, self.clock[r])
        woken = self._arrive(key, task, posted, source, target)
        if not transfer.value and r in self._roles(target):
            if r not in posted.arrived:
                self.waiting.setdefault(key, set()).add(r)
                return None
            self.clock[r] = max(self.clock[r], posted.arrived[r])
        self.position[r] += 1
        return woken

    def _arrive(self, key: Key, task: Task, posted: _Posted, source: Submesh, target: Submesh) -> set[int]:
        """What travels once both ends are there; the roles that waited for it."""
        sources = self._roles(source)
        if any(s not in posted.sent for s in sources):
            return set()
        number, forward = key[0], key[2]
        if (number, forward) not in self._transfer_costs:
            phase = Phase.FORWARD if forward else Phase.BACKWARD
            self._transfer_costs[number, forward] = self.costs.transfer(self.schedule.transfers[number], phase)
        cost = self._transfer_costs[number, forward]
        for r, awaited in posted.awaited.items():
            if r not in posted.arrived:
                pair = (sources[0], r, forward)
                start = max(awaited, *posted.sent.values(), self.links.get(pair, 0.0))
                posted.arrived[r] = self.links[pair] = start + cost.time_s
                self.trace.flows.append((len(self.trace.ran), len(self.trace.ran) + 1))
                self.trace.ran.append(Ran(sources[0], task, start, posted.arrived[r], cost, sends=True))
                self.trace.ran.append(Ran(r, task, start, posted.arrived[r], cost))
        return self.waiting.pop(key, set())

    # -- tasks -------------------------------------------------------------------------------------------------------

    def _compute(self, r: int, task: Task) -> set[int] | None:
        block = self.schedule.blocks[task.block]
        start = self.clock[r]
        for key in self.needs.of(task):
            posted = self.posted.get(key)
            if posted is None or r not in posted.arrived:
                self.waiting.setdefault(key, set()).add(r)
                return None
            start = max(start, posted.arrived[r])
        members = self._roles(block.submesh)
        cost = self._cost(block, task.phase, r)
        if len(members) == 1 or not cost.communication_s:
            self._ran(r, task, start, cost)
            return set()
        meeting = self.meetings.setdefault(task, {})
        meeting[r] = start
        if len(meeting) < len(members):
            return None
        start = max(meeting.values())
        cost = max((self._cost(block, task.phase, m) for m in members), key=lambda c: c.time_s)
        for m in members:
            self._ran(m, task, start, cost)
        return set(members) - {r}

    def _ran(self, r: int, task: Task, start: float, cost: Cost) -> None:
        self.clock[r] = start + cost.time_s
        self.position[r] += 1
        self.trace.ran.append(Ran(r, task, start, self.clock[r], cost))

    def _cost(self, block: Block, phase: Phase, r: int) -> Cost:
        key = block.number, phase, r
        if key not in self._costs:
            self._costs[key] = self.costs.task(block, phase, self.roles[r])
        return self._costs[key]

    def _roles(self, submesh: Submesh) -> tuple[int, ...]:
        if submesh not in self._members:
            self._members[submesh] = tuple(k for k, role in enumerate(self.roles) if role.is_in(submesh))
        return self._members[submesh]

    # -- behind the tasks --------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Gradients of weights that several roles share are summed when the last of these roles is there."""
        tied: dict[str, list[Role]] = {}
        for role in self.roles:
            for weight in {h.weight for h in self.schedule.homes if role.is_in(h.submesh)}:
                tied.setdefault(weight, []).append(role)
        start = list(self.clock)
        shared = {tuple(self.roles.index(role) for role in those) for those in tied.values() if len(those) > 1}
        for together in sorted(shared):
            latest = max(self.clock[r] for r in together)
            for r in together:
                start[r] = max(start[r], latest)
        for r, role in enumerate(self.roles):
            tail = self.costs.tail(role)
            begin = start[r] if tail.reduce.time_s else self.clock[r]
            reduced = begin + tail.reduce.time_s
            self.trace.ended.append(Ended(begin, reduced, reduced + tail.optimizer.time_s, tail))
