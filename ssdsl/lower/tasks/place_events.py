"""Turns tasks into actions: adds posts and waits, drops values after their last reader, and completes gradients."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from ssdsl.ir.comm import Signal, Transfer
from ssdsl.ir.function import Backward, Function
from ssdsl.ir.param import FlatParam
from ssdsl.ir.parts import reads_of_tasks
from ssdsl.ir.program import (
    Action,
    At,
    Compute,
    DropWeights,
    End,
    Free,
    GatherParam,
    KeepWeights,
    Members,
    Role,
    ScatterGrads,
    Start,
    StartReduce,
    Update,
    Wait,
    WaitReduce,
)
from ssdsl.ir.uses import InstrPlace
from ssdsl.lower.stages import Carry, Scheduled, Task
from ssdsl.lower.tasks.keep_weights import kept_intervals
from ssdsl.plan.plan import Phase
from ssdsl.record import replace

Slot = tuple[str, At]


def place_events(lowering: Scheduled) -> Scheduled:
    """Adds each role's actions.

    Of two stages in two micro-batches, on the second:

        +   wait message0[m = 0]
        +   free "linear_1 for block1"[m = 0]
        +   wait message0[m = 1]
        +   free "linear_1 for block1"[m = 1]
        +   update
    """
    trained = [f.trained for f in lowering.functions]
    shared = _Shared(lowering, AwaitedTransfers(lowering), Members(lowering.roles), trained)
    pairs = enumerate(zip(lowering.roles, lowering.tasks, strict=True))
    return replace(
        lowering, roles=tuple(replace(role, actions=tuple(_actions(shared, n, tasks))) for n, (role, tasks) in pairs)
    )


class AwaitedTransfers:
    """The messages that must have arrived before a task can start."""

    def __init__(self, lowering: Scheduled) -> None:
        self.incoming = [reads_of_tasks(function) for function in lowering.functions]
        self.returning: dict[int, list[Transfer]] = {}
        for message in lowering.messages:
            if isinstance(message, Transfer) and message.backward is not None:
                self.returning.setdefault(message.producer, []).append(message)

    def of(self, task: Compute) -> Iterator[Carry]:
        """Yields the messages that a task waits for, in order, each once."""
        return iter(dict.fromkeys(self._of(task)))

    def _of(self, task: Compute) -> Iterator[Carry]:
        if task.phase.is_forward:
            for given, part in self.incoming[task.function].get(task.at, ()):
                if given.message is not None:
                    yield Carry(given.message, part, False)
        elif task.phase.of_inputs:
            for transfer in self.returning.get(task.function, ()):
                yield Carry(transfer.number, task.at, True)


class _Shared(NamedTuple):
    """The facts that all roles share."""

    lowering: Scheduled
    awaited: AwaitedTransfers
    members: Members
    trained: list[frozenset[str]]  # by function, the weights whose gradients its backward adds to


def _actions(shared: _Shared, number: int, tasks: tuple[Task, ...]) -> Iterator[Action]:
    lowering, role = shared.lowering, shared.lowering.roles[number]
    flats = [f for f in lowering.flats if lowering.trains and role.is_in(f.submesh)]
    if not tasks and not flats:  # without a task of one of several losses it still ends the step for its weights
        return
    ends = _Ends(shared, number)
    kept = {r.slot for r in lowering.results}
    read = [dict.fromkeys(_read(shared, ends, task)) for task in tasks]
    last_reads = _last_reads(read, [_made_again(shared, task) for task in tasks])
    last_backward = _last_backwards(shared, role, tasks, flats)
    scattered = [f for f in flats if f.completion.each and not f.stays_whole]
    staying = _Staying(shared, flats, tasks)
    waited: set[Carry] = set()
    complete: list[StartReduce] = []  # of flat parameters whose gradients have their last addend
    for k, task in enumerate(tasks):
        if isinstance(task, Compute):
            yield from complete  # after the sends, for which other devices wait
            complete = []
            for carry in shared.awaited.of(task):
                if carry not in waited and ends[carry.message, carry.gradient] in (End.RECEIVE, End.BOTH):
                    waited.add(carry)
                    yield Wait(carry.message, carry.at, carry.gradient)
            yield from (KeepWeights(flat) for flat in staying.begins.get(k, ()))
            yield task
            begun = _begun(shared, role, task, scattered, last_backward.get(k, []))
            yield from (x for x in begun if x.within)
            yield from (DropWeights(flat) for flat in staying.ends.get(k, ()))
            yield from (x for x in begun if not x.within and isinstance(x, ScatterGrads))
            yield from (ScatterGrads(flat) for flat in staying.reduced.get(k, ()))
            complete += [x for x in begun if not x.within and isinstance(x, StartReduce)]
        else:
            end = ends[task.message, task.gradient]
            assert end is not None, "a role has the tasks in which it takes part"
            yield Start(task.message, task.at, task.gradient, end)
            if end is not End.SEND and isinstance(lowering.messages[task.message], Signal):
                yield Wait(task.message, task.at, task.gradient)
        yield from (Free(*slot) for slot in last_reads[k] if slot[0] not in kept)
    if not lowering.trains:
        return
    yield from complete
    yield from _epilogue(flats, {f.number for last in last_backward.values() for f in last})
    yield from _gathers(lowering, role, tasks, flats)


class _Staying:
    """What happens with the weights that stay through several of a role's tasks, by the number of a task: those that
    stay from it on, those that are dropped behind it, and those whose gradients are reduced behind it."""

    def __init__(self, shared: _Shared, flats: list[FlatParam], tasks: Sequence[Task]) -> None:
        self.begins: dict[int, list[int]] = {}
        self.ends: dict[int, list[int]] = {}
        self.reduced: dict[int, list[int]] = {}
        functions = shared.lowering.functions
        for number, intervals in kept_intervals(functions, flats, tasks).items():
            flat = shared.lowering.flats[number]
            adding = [k for k, task in enumerate(tasks) if _adds(shared, flat, task)] if flat.stays_whole else []
            for first, last in intervals:
                self.begins.setdefault(first, []).append(number)
                self.ends.setdefault(last, []).append(number)
            for first, end in pairwise([-1, *(last for _, last in intervals[:-1]), len(tasks)]):
                if inside := [k for k in adding if first < k <= end]:
                    self.reduced.setdefault(inside[-1], []).append(number)


def _adds(shared: _Shared, flat: FlatParam, task: Task) -> bool:
    """Whether a task adds to the gradient of a flat parameter."""
    if not isinstance(task, Compute):
        return False
    function = shared.lowering.functions[task.function]
    is_here = function.submesh == flat.submesh and _is_last_phase(function, task.phase)
    return is_here and not shared.trained[task.function].isdisjoint(flat.weights)


class _Ends(dict[tuple[int, bool], End | None]):
    """By message and direction, the role's end of it; found at the first look-up."""

    def __init__(self, shared: _Shared, role: int) -> None:
        super().__init__()
        self.shared, self.role = shared, role

    def __missing__(self, key: tuple[int, bool]) -> End | None:
        number, gradient = key
        message = self.shared.lowering.messages[number]
        self[key] = end = self.shared.members.end(self.role, message, gradient)
        return end


def _read(shared: _Shared, ends: _Ends, task: Task) -> list[Slot]:
    """The slots that a task reads on a role's devices."""
    if isinstance(task, Compute):
        inputs = shared.awaited.incoming[task.function].get(task.at, ()) if task.phase.is_forward else ()
        return [(given.slot, part) for given, part in inputs]
    if not task.gradient and ends[task.message, False] in (End.SEND, End.BOTH):
        message = shared.lowering.messages[task.message]
        return [(message.source_slot, task.at)] if isinstance(message, Transfer) else []
    return []


def _made_again(shared: _Shared, task: Task) -> list[Slot]:
    """The slots in which a task leaves values that were there before."""
    if not isinstance(task, Compute) or task.phase is not Phase.AGAIN:
        return []
    return [(o.slot, task.at) for o in shared.lowering.functions[task.function].outputs if o.again]


def _last_reads(read: Sequence[Iterable[Slot]], made: Sequence[list[Slot]]) -> list[list[Slot]]:
    """For each task, the slots that no later one reads before one makes them again."""
    found: list[list[Slot]] = [[] for _ in read]
    wanted = set[Slot]()
    for k in reversed(range(len(read))):
        wanted.difference_update(made[k])
        found[k] = [slot for slot in read[k] if slot not in wanted]
        wanted.update(read[k])
    return found


# -- gradients ---------------------------------------------------------------------------------------------------------


def _begun(
    shared: _Shared, role: Role, task: Compute, scattered: list[FlatParam], last: list[FlatParam]
) -> list[ScatterGrads | StartReduce]:
    """The reductions that begin with a backward: of gradients that go to the devices that hold parts of them after each
    one (ZeRO-2), and of those that get their `last` addends. First come those of which the backward gives each weight
    an addend, in the order in which it does; they begin within it."""
    function, trained = shared.lowering.functions[task.function], shared.trained[task.function]
    if not (scattered or last) or not _is_last_phase(function, task.phase):
        return []
    here = (f for f in scattered if f.submesh == function.submesh and not trained.isdisjoint(f.weights))
    found: list[tuple[type[ScatterGrads | StartReduce], FlatParam]] = [(ScatterGrads, flat) for flat in here]
    found += [(StartReduce, flat) for flat in last]
    within, behind = list[tuple[InstrPlace, ScatterGrads | StartReduce]](), list[ScatterGrads | StartReduce]()
    for kind, flat in found:
        fills = function.backward is Backward.WHOLE and trained.issuperset(flat.weights) and not flat.sharded.weights
        at_once = kind is ScatterGrads or (flat.completion.started and not flat.completion.each)
        if fills and at_once and role.submesh == flat.submesh:
            within.append((function.first_read(flat.weights), kind(flat.number, within=True)))
        else:
            behind.append(kind(flat.number))
    within.sort(key=lambda placed: placed[0], reverse=True)
    return [*(begins for _, begins in within), *behind]


def _is_last_phase(function: Function, phase: Phase) -> bool:
    """Whether a phase leaves the gradients of a function's weights."""
    return phase is (Phase.WGRAD if function.backward is Backward.HALVES else Phase.BACKWARD)


def _last_backwards(
    shared: _Shared, role: Role, tasks: tuple[Task, ...], flats: list[FlatParam]
) -> dict[int, list[FlatParam]]:
    """By the number of a task, the flat parameters whose gradients get their last addend in it. Parameters shared with
    other roles are left out: they are completed at the end, where all roles have one order."""
    functions, trained = shared.lowering.functions, shared.trained
    computed = ((k, task) for k, task in enumerate(tasks) if isinstance(task, Compute))
    ends = {t.function: k for k, t in computed if _is_last_phase(functions[t.function], t.phase)}
    last: dict[int, list[FlatParam]] = {}
    for flat in (f for f in flats if f.completion.once and f.submesh == role.submesh):
        if adding := [k for function, k in ends.items() if not trained[function].isdisjoint(flat.weights)]:
            last.setdefault(max(adding), []).append(flat)
    return last


def _epilogue(flats: list[FlatParam], started: set[int]) -> Iterator[Action]:
    once = [f for f in flats if f.completion.once]
    yield from (StartReduce(f.number) for f in once if f.number not in started)
    yield from (WaitReduce(f.number) for f in flats if f.completion.each or f.completion.once)
    yield Update()


# -- weights -----------------------------------------------------------------------------------------------------------


def _gathers(lowering: Scheduled, role: Role, tasks: tuple[Task, ...], flats: list[FlatParam]) -> Iterator[GatherParam]:
    """Starts to gather weights that other devices have updated, in the order in which the next forward awaits them.
    Those shared with other roles come behind, as all roles must have one order: that of the layers."""
    updated = [f for f in reversed(flats) if f.sharded.updated]  # they are numbered from the last layer
    alone = [f.number for f in updated if f.submesh == role.submesh]
    functions = dict.fromkeys(t.function for t in tasks if isinstance(t, Compute) and t.phase is Phase.FORWARD)
    awaited = (flat for n in functions for section in lowering.functions[n].sections for flat in section.awaits)
    order = [*(n for n in awaited if n in alone), *alone, *(f.number for f in updated)]
    yield from map(GatherParam, dict.fromkeys(order))
