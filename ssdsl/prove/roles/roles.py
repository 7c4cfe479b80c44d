"""Checks roles: each task runs once, after the tasks and messages that it needs; each message has both its ends; the
optimizer's step runs once, after all gradients, and weights that others updated are gathered.

The actions of a role are followed one by one. A part of a value is there after the task or the message that brings it;
its gradient is complete after all tasks and messages that add to it. The parts that each task reads follow from the
functions' inputs alone; the order of tasks plays no role.
"""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, assert_never

from ssdsl.ir.comm import Exchange, Signal, Transfer
from ssdsl.ir.function import Backward, Function
from ssdsl.ir.param import FlatParam
from ssdsl.ir.parts import coordinates
from ssdsl.ir.program import (
    At,
    BeginReduce,
    Compute,
    DropWeights,
    End,
    Free,
    GatherParam,
    KeepWeights,
    OnFlat,
    Role,
    ScatterGrads,
    Start,
    StartReduce,
    Update,
    Wait,
    WaitReduce,
)
from ssdsl.plan.plan import Phase
from ssdsl.prove.facts import ProofFacts
from ssdsl.prove.failures import Rule
from ssdsl.prove.roles.devices import Inside, Share, count, share
from ssdsl.prove.types.local import covered
from ssdsl.text.source import Span

Key = tuple[str, At]  # a part of a value: the slot that keeps it, and its coordinates in time


@dataclass(slots=True)
class TaskReads:
    """The reads of all tasks, by function and coordinates. `reads` are the parts that a task's forward reads, `learns`
    those whose gradients its backward adds to; `adds` are, by part, the tasks and messages that add to its gradient on
    the devices that keep it."""

    reads: dict[tuple[int, At], list[Key]] = field(default_factory=dict)
    learns: dict[tuple[int, At], list[Key]] = field(default_factory=dict)
    adds: dict[Key, set[Compute | int]] = field(default_factory=dict)


def parts_of(facts: ProofFacts) -> TaskReads:
    """All reads of all tasks. Adds a failure for each part whose gradient a transfer sends back, but nothing gives."""
    found = TaskReads()
    for function in facts.program.functions:
        back = function.returns
        for given in function.inputs:
            learns = given.gradient
            regions = {a: _parts_read(m) for m in given.merges if isinstance(m, Exchange) for a in m.axes}
            shared = {t.name for t in given.time} - {axis for m in given.merges for axis in m.axes}
            for at in coordinates(function.time):
                here = dict(zip((t.name for t in function.time), at, strict=True))
                if not shared <= here.keys():
                    continue  # the forward walk has added a failure
                some = {a: read[here.get(a, 0)] for a, read in regions.items() if here.get(a, 0) < len(read)}
                for part in itertools.product(
                    *([here[t.name]] if t.name in shared else some.get(t.name, range(t.parts)) for t in given.time)
                ):
                    found.reads.setdefault((function.number, at), []).append((given.slot, part))
                    if learns and back is not None:
                        found.learns.setdefault((function.number, at), []).append((given.slot, part))
                        found.adds.setdefault((given.slot, part), set()).add(Compute(function.number, at, back))
    for message in facts.program.messages:
        if isinstance(message, Transfer) and message.backward is not None:
            for part in coordinates(message.time):
                if (message.target_slot, part) not in found.adds:
                    where = f"transfer {message.number}"
                    facts.fail(Rule.MESSAGE, where, message.value, "a gradient to send", f"none of {list(part)}")
                else:
                    found.adds.setdefault((message.source_slot, part), set()).add(message.number)
    return found


@lru_cache(maxsize=1024)
def _parts_read(merge: Exchange) -> tuple[list[int], ...]:
    """For each part of a reader, the parts that it reads, of a value whose parts are merged."""
    have = [covered(runs) for runs in merge.source.at or ()]
    needs = (covered(runs) for runs in merge.target.at or ())
    return tuple([k for k, own in enumerate(have) if not own.isdisjoint(need)] for need in needs)


# -- tasks and messages ------------------------------------------------------------------------------------------------


def check_places(facts: ProofFacts) -> None:
    """Adds a failure unless roles share no device, and each function, parameter and message has a role on each of its
    devices."""
    program = facts.program
    for at, role in enumerate(program.roles):
        for other in program.roles[at + 1 :]:
            if share(role.submesh, other.submesh) is not Share.NONE:
                facts.fail(Rule.RUN_ONCE, f"role `{role.name}`", "", "devices of its own", other.name)
    places = {f.submesh for f in program.functions} | {p.submesh for p in program.params}
    places |= {s for m in program.messages for s in (m.source, m.target)}
    here = [(role, Inside(role.submesh)) for role in program.roles]
    for place in sorted(places, key=str):
        inside = [role for role, is_inside in here if is_inside[place]]
        if sum(count(r.submesh) for r in inside) != count(place):
            facts.fail(Rule.RUN_ONCE, f"the devices {place}", "", "roles on all of them", [r.name for r in inside])


def check_role(facts: ProofFacts, role: Role, parts: TaskReads) -> None:
    """Adds a failure for each action of a role that comes too early, too late, or not exactly once."""
    inside, messages = Inside(role.submesh), facts.program.messages
    functions = tuple(f for f in facts.program.functions if inside[f.submesh])
    run = _Run(facts, role, parts, functions, [(inside[m.source], inside[m.target]) for m in messages])
    for action in role.actions:
        match action:
            case Compute():
                run.compute(action)
            case Start():
                run.start(action)
            case Wait():
                run.wait(action)
            case Free():
                run.free(action)
            case OnFlat() | Update():
                pass  # in `check_updates`
            case _:
                assert_never(action)
    run.finish()


class _Rules(NamedTuple):
    """The rules of a function's tasks in one phase: the numbers of parts along its coordinates; the phases that run
    before; the slots in which its values are there then, and those whose gradients it needs."""

    sizes: tuple[int, ...]
    earlier: tuple[Phase, ...]
    leaves: tuple[str, ...]
    needs: tuple[str, ...]


def _rules(facts: ProofFacts, function: Function) -> Iterator[tuple[Phase, _Rules]]:
    sizes, phases = tuple(t.parts for t in function.time), function.phases
    leaves = tuple(o.slot for o in function.outputs if o.read)
    learning = [o for o in function.outputs if facts.learns(o.name)]
    yield Phase.FORWARD, _Rules(sizes, (), leaves, ())
    for number, phase in enumerate(phases[1:], 1):
        if phase is Phase.AGAIN:
            yield phase, _Rules(sizes, phases[:number], tuple(o.slot for o in function.outputs if o.again), ())
            continue
        apart = {Phase.DGRAD: True, Phase.WGRAD: False}.get(phase)  # `wgrad_only` of those that the other half needs
        yield phase, _Rules(sizes, phases[:number], (), tuple(o.slot for o in learning if o.wgrad_only is not apart))


@dataclass(slots=True)
class _Run:
    """The state of a role's devices after the actions so far. `functions` are those that run on them; `ends` says for
    each message whether they are at its source and at its target; `there` are the parts that they have, `used` those
    that were read, `given` the tasks and messages that have added to each part's gradient."""

    facts: ProofFacts
    role: Role
    parts: TaskReads
    functions: tuple[Function, ...]
    ends: list[tuple[bool, bool]]
    rules: dict[tuple[int, Phase], _Rules] = field(init=False)
    done: set[Compute] = field(default_factory=set)
    there: set[Key] = field(default_factory=set)
    used: set[Key] = field(default_factory=set)
    freed: set[Key] = field(default_factory=set)
    given: dict[Key, set[Compute | int]] = field(default_factory=dict)
    started: Counter[tuple[int, tuple[int, ...], bool]] = field(default_factory=Counter)
    receives: set[tuple[int, tuple[int, ...], bool]] = field(default_factory=set)
    waited: set[tuple[int, tuple[int, ...], bool]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rules = {(f.number, phase): rules for f in self.functions for phase, rules in _rules(self.facts, f)}

    def fail(self, rule: Rule, what: object, tensor: object, wanted: object, had: object) -> None:
        """Adds a failure; its statement is the one that gave the task its place, or the mesh's."""
        span: Span | None = None
        if isinstance(what, Compute):
            span = next(iter(self.facts.program.stated.get(what, ())), None)
        where = f"role `{self.role.name}`, {_words(what)}"
        self.facts.fail(rule, where, tensor, wanted, had, span or self.role.submesh.mesh.span)

    # -- tasks -------------------------------------------------------------------------------------------------------

    def compute(self, task: Compute) -> None:
        """Checks a task: it is one of these devices, runs once, after its earlier phases and all that it reads."""
        rules = self.rules.get((task.function, task.phase))
        if rules is None:
            self.fail(Rule.RUN_ONCE, task, "", "a task of these devices", task.phase)
            return
        if len(task.at) != len(rules.sizes) or not all(0 <= c < n for c, n in zip(task.at, rules.sizes, strict=True)):
            self.fail(Rule.RUN_ONCE, task, "", f"coordinates of {[*rules.sizes]}", task.at)
            return
        if task in self.done:
            self.fail(Rule.RUN_ONCE, task, "", "once", "again")
        for phase in rules.earlier:
            if Compute(task.function, task.at, phase) not in self.done:
                self.fail(Rule.EARLY, task, "", f"behind its {phase.value}", "before it")
        self.done.add(task)
        if task.phase.is_forward:
            for key in self.parts.reads.get((task.function, task.at), ()):
                self.read(task, key)
        left = [(slot, task.at) for slot in rules.leaves]
        self.there.update(left)
        self.freed.difference_update(left)
        for slot in rules.needs:
            self.gradient(task, (slot, task.at))
        if task.phase.of_inputs:
            for key in self.parts.learns.get((task.function, task.at), ()):
                self.given.setdefault(key, set()).add(task)

    def read(self, what: object, key: Key) -> None:
        """Notes a read; adds a failure if the part is not there, or has been dropped."""
        if key not in self.there:
            self.fail(Rule.EARLY, what, key[0], f"its part {list(key[1])}", "not there yet")
        elif key in self.freed:
            self.fail(Rule.FREED, what, key[0], f"its part {list(key[1])}", "dropped before")
        self.used.add(key)

    def gradient(self, what: object, key: Key) -> None:
        """Adds a failure unless all addends of a part's gradient are there."""
        wanted = self.parts.adds.get(key)
        if wanted and (missing := wanted - self.given.get(key, set())):
            some = ", ".join(sorted(_words(m) for m in missing)[:3])
            self.fail(Rule.EARLY, what, key[0], f"the gradient of part {list(key[1])}", f"without that of {some}")

    # -- messages ----------------------------------------------------------------------------------------------------

    def start(self, action: Start) -> None:
        """Checks a start: the message has this end here, is posted once, and the value or gradient to send is there."""
        messages = self.facts.program.messages
        key = (action.message, action.at, action.gradient)
        message = messages[action.message] if action.message in range(len(messages)) else None
        if message is None or (action.gradient and (isinstance(message, Signal) or message.backward is None)):
            self.fail(Rule.MESSAGE, action, "", "a message", action.message)
            return
        sends, receives = self.ends[action.message][:: -1 if action.gradient else 1]
        end = End.BOTH if sends and receives else End.SEND if sends else End.RECEIVE if receives else None
        if action.end is not end:
            self.fail(Rule.MESSAGE, action, "", end.value if end else "no end here", action.end.value)
        self.started[key] += 1
        if self.started[key] > 1:
            self.fail(Rule.MESSAGE, action, "", "one start", self.started[key])
        if receives:
            self.receives.add(key)
        if sends and isinstance(message, Transfer):
            if action.gradient:
                self.gradient(action, (message.target_slot, action.at))
            else:
                self.read(action, (message.source_slot, action.at))

    def wait(self, action: Wait) -> None:
        """Checks a wait: a receive was posted and not waited for; notes that the value or gradient is there."""
        key = (action.message, action.at, action.gradient)
        if key not in self.receives or key in self.waited:
            self.fail(Rule.MESSAGE, action, "", "a receive that was started, and not waited for", "none")
            return
        self.waited.add(key)
        message = self.facts.program.messages[action.message]
        if isinstance(message, Transfer) and action.gradient:
            self.given.setdefault((message.source_slot, action.at), set()).add(message.number)
        elif isinstance(message, Transfer):
            self.there.add((message.target_slot, action.at))

    def free(self, action: Free) -> None:
        """Checks that a part is dropped once, while it is there."""
        key = (action.slot, action.at)
        if key not in self.there or key in self.freed:
            self.fail(Rule.FREED, action, action.slot, "a value that is there", "none")
        self.freed.add(key)

    # -- the end -----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Adds a failure for each task or message of these devices that has not run, and each part that was read and
        never dropped."""
        results = {r.slot for r in self.facts.program.results}
        for slot, at in sorted(self.used - self.freed):
            if slot not in results:
                self.fail(Rule.FREED, Free(slot, at), slot, "dropped behind its last reader", "never")
        for function in self.functions:
            for phase in function.phases:
                for at in coordinates(function.time):
                    task = Compute(function.number, at, phase)
                    if task not in self.done:
                        self.fail(Rule.RUN_ONCE, task, "", "once", "never")
        for number, where, is_gradient in sorted(self.receives - self.waited):
            self.fail(Rule.MESSAGE, Wait(number, where, is_gradient), "", "one wait", "none")
        for message, (sends, receives) in zip(self.facts.program.messages, self.ends, strict=True):
            if not sends and not receives:
                continue
            transfer = message if isinstance(message, Transfer) else None
            gradients = (False, True) if transfer is not None and transfer.backward is not None else (False,)
            for at in coordinates(transfer.time) if transfer is not None else [()]:
                for gradient in gradients:
                    if not self.started[message.number, at, gradient]:
                        self.fail(Rule.MESSAGE, Start(message.number, at, gradient, End.BOTH), "", "one start", "none")


def _words(what: object) -> str:
    match what:
        case Compute():
            return f"function {what.function} at {list(what.at)}, {what.phase.value}"
        case Start() | Wait():
            kind = "gradient of message" if what.gradient else "message"
            return f"{type(what).__name__.lower()} of {kind} {what.message} at {list(what.at)}"
        case Free():
            return f"free of {what.slot} at {list(what.at)}"
        case int():
            return f"message {what}"
        case _:
            return str(what)


# -- the optimizer's step ----------------------------------------------------------------------------------------------


OF_FLATS: tuple[type[OnFlat], ...] = (ScatterGrads, StartReduce, WaitReduce, GatherParam)


def check_updates(facts: ProofFacts, role: Role) -> None:
    """Adds a failure for each gradient that is not completed, and each weight that is not updated, exactly once and in
    time."""
    inside = Inside(role.submesh)
    flats = [f for f in facts.program.flats if inside[f.submesh]]
    kept = {f.number for f in flats if f.kept is not None}
    where, span = f"role `{role.name}`", role.submesh.mesh.span
    if not facts.program.trains:
        if changes := [a for a in role.actions if isinstance(a, Update | OnFlat)]:
            facts.fail(Rule.UPDATE, where, "", "none, as nothing trains", changes[0], span)
        return
    tasks, updates = list[tuple[int, Compute]](), list[int]()
    found: dict[type[OnFlat], dict[int, list[int]]] = {kind: {} for kind in OF_FLATS}  # by flat parameter
    front, within = -1, dict[tuple[type, int], list[int]]()  # by kind and flat parameter, the tasks of starts within
    for k, action in enumerate(role.actions):
        if isinstance(action, BeginReduce) and action.within:
            within.setdefault((type(action), action.flat), []).append(front)
        else:
            front = k
        match action:
            case Compute():
                tasks.append((k, action))
            case Update():
                updates.append(k)
            case KeepWeights() | DropWeights() if action.flat in kept:
                pass  # in `check_kept`
            case KeepWeights() | DropWeights():
                facts.fail(Rule.STAYS, where, "", "nothing, as its weights do not stay", action, span)
            case OnFlat():
                found[type(action)].setdefault(action.flat, []).append(k)
    last_task = tasks[-1][0] if tasks else -1
    is_idle = not flats and last_task < 0
    if not is_idle and (len(updates) != 1 or updates[0] < last_task):  # also without weights: the update ends a step
        facts.fail(Rule.UPDATE, where, "", "one update behind all tasks", f"updates at {updates}", span)
    update = updates[0] if updates else len(role.actions)
    adds, numbers = _additions(facts, flats, tasks), {f.number for f in flats}
    for flat in flats:
        at = {kind: places.get(flat.number, []) for kind, places in found.items()}
        fills = [k for k in adds[flat.number] if _fills(facts, role, k, flat)]
        wrong: dict[type[OnFlat], bool] = {
            ScatterGrads: not {*fills}.issuperset(within.get((ScatterGrads, flat.number), ())),
            StartReduce: not {*fills[-1:]}.issuperset(within.get((StartReduce, flat.number), ()))
            or (bool(flat.completion.each) and (StartReduce, flat.number) in within),
        }
        _check(facts, flat, adds[flat.number], at, update, where, wrong)
    for places in found.values():
        for number in places.keys() - numbers:
            facts.fail(Rule.REDUCE, where, "", f"flat parameters of these devices: {sorted(numbers)}", number, span)


def _check(
    facts: ProofFacts,
    flat: FlatParam,
    adding: list[int],
    at: dict[type[OnFlat], list[int]],
    update: int,
    where: str,
    wrong: dict[type[OnFlat], bool],
) -> None:
    """Adds a failure for each kind of action on a flat parameter that does not run as often and when it must: `adding`
    are the role's actions that add to its gradient, and `at` the numbers of the actions of each kind. `wrong`: whether
    some begin within a task that does not give each weight an addend."""
    last, ends = (adding[-1] if adding else -1), [*adding[1:], update]
    scatters, starts, waits, gathers = (at[kind] for kind in (ScatterGrads, StartReduce, WaitReduce, GatherParam))
    if flat.stays_whole:  # a scatter behind some addends, and none that is left
        addends = [max((a for a in adding if a < s), default=-1) for s in scatters]
        between = last < max(scatters, default=-1) < update if adding else not scatters
        between = between and sorted({*addends} - {-1}) == addends
    else:
        pairs = zip(adding, scatters, ends, strict=False)
        between = len(scatters) == len(adding) and all(a < s < b for a, s, b in pairs)
    begun = max([last, *scatters, *starts])
    once = 1 if flat.completion.once else 0
    waited = 1 if flat.completion.once or flat.completion.each else 0
    gathered = 1 if flat.sharded.optimizer != flat.sharded.weights else 0
    in_time: dict[type[OnFlat], bool] = {
        ScatterGrads: between if flat.completion.each else not scatters,
        StartReduce: len(starts) == once and all(start > max([last, *scatters]) for start in starts),
        WaitReduce: len(waits) == waited and all(begun < wait < update for wait in waits),
        GatherParam: len(gathers) == gathered and all(gather > update for gather in gathers),
    }
    wanted: dict[type[OnFlat], str] = {
        ScatterGrads: "one behind each addend" if flat.completion.each else "no scatter: gradients are no finer",
        StartReduce: f"{once} starts behind the last addend, or within the task that adds it to all weights",
        WaitReduce: f"{waited} waits between start and update",
        GatherParam: f"{gathered} starts of gathers behind the update",
    }
    tensor, span = ", ".join(flat.weights[:3]), flat.submesh.mesh.span
    for kind, is_right in in_time.items():
        if not is_right or wrong.get(kind):
            rule = Rule.STALE if kind is GatherParam else Rule.REDUCE
            given = f"{kind.__name__} at {at[kind]}"
            facts.fail(rule, f"{where}, flat parameter {flat.number}", tensor, wanted[kind], given, span)


def _fills(facts: ProofFacts, role: Role, k: int, flat: FlatParam) -> bool:
    """Whether action number k of a role, which adds to the gradient of a flat parameter of these devices alone, adds to
    that of each weight, and leaves these one by one: they are all there before it ends."""
    task = role.actions[k]
    assert isinstance(task, Compute)
    adds_all = facts.program.functions[task.function].trained.issuperset(flat.weights)
    is_alone = count(flat.submesh) == count(role.submesh)
    return adds_all and is_alone and task.phase is Phase.BACKWARD and not flat.sharded.weights


def _additions(facts: ProofFacts, flats: list[FlatParam], tasks: list[tuple[int, Compute]]) -> dict[int, list[int]]:
    """For each flat parameter, the numbers of the role's `tasks` that add to its gradient."""
    adds: dict[tuple[int, Phase], list[int]] = {}
    for function in facts.program.functions:
        if near := [f for f in flats if f.submesh == function.submesh]:
            trained = function.trained
            last = Phase.WGRAD if function.backward is Backward.HALVES else Phase.BACKWARD
            adds[function.number, last] = [f.number for f in near if not trained.isdisjoint(f.weights)]
    found: dict[int, list[int]] = {f.number: [] for f in flats}
    for k, task in tasks:
        for number in adds.get((task.function, task.phase), ()):
            found[number].append(k)
    return found
