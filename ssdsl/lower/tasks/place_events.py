"""Turns tasks into actions: adds posts and waits, drops values after their last reader, and completes gradients."""

from collections.abc import Iterator
from typing import NamedTuple

from ssdsl.ir.comm import Signal, Transfer
from ssdsl.ir.function import Backward, Function
from ssdsl.ir.param import FlatParam
from ssdsl.ir.parts import reads_of_tasks
from ssdsl.ir.program import (
    Action,
    At,
    Compute,
    End,
    Free,
    GatherParam,
    Members,
    Role,
    ScatterGrads,
    Start,
    StartReduce,
    Update,
    Wait,
    WaitReduce,
)
from ssdsl.lower.stages import Carry, Scheduled, Task
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
        if task.phase is Phase.FORWARD:
            for given, part in self.incoming[task.function].get(task.at, ()):
                if given.message is not None:
                    yield Carry(given.message, part, False)
        elif task.phase is not Phase.WGRAD:
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
    last_read = {slot: k for k, slots in enumerate(read) for slot in slots}
    last_backward = _last_backwards(shared, role, tasks, flats)
    scattered = [f for f in flats if f.completion.each]
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
            yield task
            yield from (start for start in last_backward.get(k, ()) if start.within)
            yield from _scattered(shared, task, scattered)
        else:
            end = ends[task.message, task.gradient]
            assert end is not None, "a role has the tasks in which it takes part"
            yield Start(task.message, task.at, task.gradient, end)
            if end is not End.SEND and isinstance(lowering.messages[task.message], Signal):
                yield Wait(task.message, task.at, task.gradient)
        for slot in read[k]:
            if last_read[slot] == k and slot[0] not in kept:
                yield Free(*slot)
        complete += [start for start in last_backward.get(k, ()) if not start.within]
    if not lowering.trains:
        return
    yield from complete
    yield from _epilogue(flats, {start.flat for starts in last_backward.values() for start in starts})


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
        inputs = shared.awaited.incoming[task.function].get(task.at, ()) if task.phase is Phase.FORWARD else ()
        return [(given.slot, part) for given, part in inputs]
    if not task.gradient and ends[task.message, False] in (End.SEND, End.BOTH):
        message = shared.lowering.messages[task.message]
        return [(message.source_slot, task.at)] if isinstance(message, Transfer) else []
    return []


# -- gradients ---------------------------------------------------------------------------------------------------------


def _scattered(shared: _Shared, task: Compute, flats: list[FlatParam]) -> Iterator[Action]:
    """Yields the reductions after each backward: its gradients go to the devices that hold parts of them (ZeRO-2)."""
    function = shared.lowering.functions[task.function]
    if not flats or not _is_last_phase(function, task.phase):
        return
    for flat in flats:
        if flat.submesh == function.submesh and not shared.trained[task.function].isdisjoint(flat.weights):
            yield ScatterGrads(flat.number)


def _is_last_phase(function: Function, phase: Phase) -> bool:
    """Whether a phase leaves the gradients of a function's weights."""
    return phase is (Phase.WGRAD if function.backward is Backward.HALVES else Phase.BACKWARD)


def _last_backwards(
    shared: _Shared, role: Role, tasks: tuple[Task, ...], flats: list[FlatParam]
) -> dict[int, list[StartReduce]]:
    """By the number of a task, the starts of the reductions of flat parameters whose gradients get their last addend in
    it: first those that the task completes alone, which start within it, in the order in which it does. Parameters
    shared with other roles are left out: they are completed at the end, where all roles have one order."""
    functions, trained = shared.lowering.functions, shared.trained
    computed = ((k, task) for k, task in enumerate(tasks) if isinstance(task, Compute))
    ends = {t.function: k for k, t in computed if _is_last_phase(functions[t.function], t.phase)}
    within: dict[tuple[int, int], list[FlatParam]] = {}  # by task, and its function
    found: dict[int, list[StartReduce]] = {}
    for flat in (f for f in flats if f.completion.once and f.submesh == role.submesh):
        adding = [(k, function) for function, k in ends.items() if not trained[function].isdisjoint(flat.weights)]
        if not adding:
            continue
        k, function = max(adding)
        is_whole = functions[function].backward is Backward.WHOLE
        if is_whole and trained[function].issuperset(flat.weights) and _fills_bucket(flat):
            within.setdefault((k, function), []).append(flat)
        else:
            found.setdefault(k, []).append(StartReduce(flat.number))
    for (k, function), done in within.items():
        last = [(functions[function].first_read(flat.weights), flat.number) for flat in done]
        starts = [StartReduce(number, within=True) for _, number in sorted(last, key=lambda x: x[0], reverse=True)]
        found[k] = [*starts, *found.get(k, ())]
    return found


def _fills_bucket(flat: FlatParam) -> bool:
    """Whether backward leaves the gradients of a flat parameter one by one, and they are reduced once."""
    return bool(flat.completion.started) and not flat.completion.each and not flat.sharded.weights


def _epilogue(flats: list[FlatParam], started: set[int]) -> Iterator[Action]:
    once = [f for f in flats if f.completion.once]
    yield from (StartReduce(f.number) for f in once if f.number not in started)
    yield from (WaitReduce(f.number) for f in once)
    yield Update()
    yield from (GatherParam(f.number) for f in flats if f.sharded.updated)
