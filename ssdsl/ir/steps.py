"""Turns the actions of roles into steps for `execute`: meetings, posts of exchanges, and waits."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from ssdsl.ir.comm import Message, functions_of, travels
from ssdsl.ir.execute import Await, Meet, Post, Roles, Step, Steps
from ssdsl.ir.function import Function
from ssdsl.ir.param import CompletionStep, FlatParam, SumTiedGrads
from ssdsl.ir.program import (
    Action,
    At,
    BeginReduce,
    Compute,
    DropWeights,
    Free,
    GatherParam,
    KeepWeights,
    Members,
    OnFlat,
    Role,
    ScatterGrads,
    Start,
    StartReduce,
    Traced,
    Travel,
    Update,
    Wait,
    WaitReduce,
)
from ssdsl.plan.plan import Phase


def steps_of(
    roles: Sequence[Role],
    functions: Sequence[Function],
    messages: Sequence[Message],
    flats: Sequence[FlatParam],
    *,
    meets: Callable[[Compute], bool] = lambda action: True,
    behind_s: Callable[[int, Compute, FlatParam], float] = lambda role, task, flat: 0.0,
    before_s: Callable[[int, Compute, int], float] = lambda role, task, section: 0.0,
    overlaps: bool = True,
    blocks: bool = False,
) -> Steps:
    """The steps of the roles' actions, of a step in the middle of many: the gathers with which each step ends are under
    way when the next one begins, so they come first.

    `meets`: whether a computation brings the roles of its function together (it has collectives). `behind_s`: for how
    long a role's backward goes on when the gradients of a flat parameter are there. `before_s`: for how long a role's
    forward has run when it comes to a section. Without `overlaps` gradients are reduced where they are awaited, and
    weights gathered where that starts, not in the background. With `blocks` a sender waits until it has sent.
    """
    found = _Translation(tuple(roles), functions, messages, flats, meets, behind_s, before_s, overlaps, blocks)
    of_role = tuple(tuple(found.of(r, role.actions)) for r, role in enumerate(roles))
    return Steps(tuple(r.name for r in roles), of_role, found.describe)


@dataclass(slots=True)
class _Translation:
    roles: tuple[Role, ...]
    functions: Sequence[Function]
    messages: Sequence[Message]
    flats: Sequence[FlatParam]
    meets: Callable[[Compute], bool]
    behind_s: Callable[[int, Compute, FlatParam], float]
    before_s: Callable[[int, Compute, int], float]
    overlaps: bool
    blocks: bool
    members: Members = field(init=False)
    _together: dict[tuple[int, Phase], Roles] = field(default_factory=dict)  # by function; () if they do not meet

    def __post_init__(self) -> None:
        self.members = Members(self.roles)

    def of(self, r: int, actions: Sequence[Action]) -> Iterator[Step]:
        """Yields the steps of role number `r`. A drop has none, nor has a reduction that exchanges nothing."""
        coming = _Coming([a for a in actions if isinstance(a, GatherParam)] if self.overlaps else [])
        yield from (self._post(r, gather, ("gather", gather.flat), None) for gather in coming.gathers)
        task: Compute | None = None  # the last one
        scatters = Counter[int]()  # by flat parameter
        scattered: list[Step] = []  # the wait for the last scatter
        for action in actions:
            match action:
                case Compute():
                    task = action
                    yield from (Await(t, t, self._members(t)) for t in self._awaited(action) if self.overlaps)
                    if action.phase is Phase.FORWARD:
                        yield from self._awaits_weights(r, action, coming)
                    yield Meet(action, action, self._meeting(action) or (r,))
                    yield from map(self._starting, self._started(action))
                case Start():
                    sources, targets = self._ends(action)
                    yield Post(action, action[:3], sources, targets, None, self.blocks)
                case Wait():
                    yield Await(action, action, self._ends(action)[0])
                case Free() | KeepWeights() | DropWeights():
                    pass
                case Update():
                    yield from (self._await(gather) for gather in coming.unread())
                    yield Meet(action, action, (r,))
                case GatherParam():
                    if not self.overlaps:
                        yield Meet(action, action, self._devices(action))
                case ScatterGrads():
                    if is_reduced(self.flats[action.flat].completion.each):
                        key, members = ("scatter", action.flat, scatters[action.flat]), self._devices(action)
                        scatters[action.flat] += 1
                        yield from scattered
                        yield self._post(r, action, key, task) if self.overlaps else Meet(action, key, members)
                        scattered = [Await(action, key, members)] if self.overlaps else []
                case StartReduce():
                    if self.flats[action.flat].completion.each:
                        yield from scattered
                        scattered = []
                    if self.overlaps and is_reduced(self.flats[action.flat].completion.started):
                        yield self._post(r, action, ("reduce", action.flat), task)
                case WaitReduce():
                    yield from scattered
                    scattered = []
                    yield from self._wait_reduce(r, action)
                case _:
                    assert_never(action)

    def _meeting(self, task: Compute) -> Roles:
        """The roles that run a task together; none if each of them runs it by itself."""
        key = task.function, task.phase
        if key not in self._together:
            roles = self.members[self.functions[task.function].submesh]
            self._together[key] = roles if len(roles) > 1 and self.meets(task) else ()
        return self._together[key]

    # -- outputs in flight -------------------------------------------------------------------------------------------

    def _awaited(self, task: Compute) -> Iterator[Travel]:
        """Yields what a task awaits before it begins: values in flight, or the gradients of those that it has left."""
        if task.phase is Phase.FORWARD:
            yield from self._arriving(task, gradient=False)
        elif task.phase.of_inputs:
            yield from self._departing(task, gradient=True)

    def _started(self, task: Compute) -> Iterator[Travel]:
        """Yields what starts to travel when a task has ended."""
        if task.phase is Phase.FORWARD:
            yield from self._departing(task, gradient=False)
        elif task.phase.of_inputs:
            yield from self._arriving(task, gradient=True)

    def _departing(self, task: Compute, *, gradient: bool) -> Iterator[Travel]:
        for output in self.functions[task.function].departing.values():
            yield from self._travel(task.function, output, task.at, gradient)

    def _arriving(self, task: Compute, *, gradient: bool) -> Iterator[Travel]:
        for given in (i for i in self.functions[task.function].inputs if i.in_flight):
            slots = [o.slot for o in self.functions[given.producer].outputs]
            yield from self._travel(given.producer, slots.index(given.slot), task.at, gradient)

    def _travel(self, function: int, output: int, at: At, gradient: bool) -> Iterator[Travel]:
        """Yields the way of an output, or of its gradient, if anything travels."""
        if any(map(travels, self.functions[function].departure(output).steps(gradient=gradient))):
            yield Travel(function, output, at, gradient)

    def _members(self, travel: Travel) -> Roles:
        return self.members[self.functions[travel.function].submesh]

    def _starting(self, travel: Travel) -> Step:
        """The start of an output's way: a post, which travels while tasks go on, one after another along the same
        axes."""
        function, members = self.functions[travel.function], self._members(travel)
        if not self.overlaps:
            return Meet(travel, travel, members)
        steps = function.departure(travel.output).steps(gradient=travel.gradient)
        axes = next(step.axes for step in steps if travels(step))
        return Post(travel, travel, members, members, (function.submesh, axes))

    def _ends(self, action: Start | Wait) -> tuple[Roles, Roles]:
        return self.members.ends(self.messages[action.message], action.gradient)

    # -- weights -------------------------------------------------------------------------------------------------------

    def _awaits_weights(self, r: int, task: Compute, coming: "_Coming") -> Iterator[Step]:
        """Yields the waits of a task for weights that are under way, if it is the first of its function."""
        if not coming.gathers or task.function in coming.functions:
            return
        coming.functions.add(task.function)
        for number, section in enumerate(self.functions[task.function].sections):
            for gather in (gather for gather in coming.gathers if gather.flat in section.awaits):
                coming.read.add(gather.flat)
                yield self._await(gather, self.before_s(r, task, number))

    def _await(self, gather: GatherParam, later_s: float = 0.0) -> Await:
        return Await(gather, ("gather", gather.flat), self._devices(gather), later_s)

    # -- gradients -----------------------------------------------------------------------------------------------------

    def _devices(self, action: OnFlat) -> Roles:
        return self.members[self.flats[action.flat].submesh]

    def _post(
        self, r: int, action: ScatterGrads | StartReduce | GatherParam, key: Hashable, task: Compute | None
    ) -> Step:
        """The start of a reduction, or of a gather: a post, which travels while tasks go on. One within a task was
        posted before that ended."""
        flat, members = self.flats[action.flat], self._devices(action)
        is_within = isinstance(action, BeginReduce) and action.within
        earlier_s = self.behind_s(r, task, flat) if is_within and task is not None else 0.0
        return Post(action, key, members, members, flat.submesh, earlier_s=earlier_s)

    def _wait_reduce(self, r: int, action: WaitReduce) -> Iterator[Step]:
        """The wait for a reduction; then a meeting: of the roles that take the steps behind those that it started with,
        or for a tied weight of all that have a copy, to sum these."""
        completion, members = self.flats[action.flat].completion, self._devices(action)
        if is_reduced(completion.started):
            start, key = StartReduce(action.flat), ("reduce", action.flat)
            yield Await(action, key, members) if self.overlaps else Meet(start, key, members)
        if tied := completion.tied:
            together = tuple(sorted({m for s in tied for m in self.members[s]}))
            yield Meet(action, ("tied", self.flats[action.flat].weights), together)
        else:
            yield Meet(action, action, members if is_reduced(completion.awaited) else (r,))

    def describe(self, action: Traced) -> str:
        """An action as the views show it: `block0.fwd[m = 2]`, `message 3 of block1[m = 0]`."""
        match action:
            case Compute():
                function, phase = self.functions[action.function], f".{action.phase}"
                what = ""
            case Start() | Wait():
                message = self.messages[action.message]
                function = self.functions[functions_of(message, action.gradient)[0]]
                what, phase = f"message {action.message} of ", ".bwd" if action.gradient else ".fwd"
            case Travel():
                function = self.functions[action.function]
                name = function.outputs[action.output].name
                what, phase = f"{name} in flight from ", ".bwd" if action.gradient else ".fwd"
            case _:
                return str(action)
        at = zip(function.time, action.at, strict=False)
        inside = ", ".join(f"{t.name} = {c}" for t, c in at)
        return f"{what}{function.name}{phase}" + (f"[{inside}]" if inside else "")


class _Coming:
    """The gathers of weights that are under way when a role's step begins. `functions` are those of which a task has
    run, `read` the flat parameters that one has awaited."""

    def __init__(self, gathers: Sequence[GatherParam]) -> None:
        self.gathers, self.functions, self.read = gathers, set[int](), set[int]()

    def unread(self) -> Iterator[GatherParam]:
        """Yields those that no task awaits."""
        return (gather for gather in self.gathers if gather.flat not in self.read)


def is_reduced(steps: Sequence[CompletionStep]) -> bool:
    """Whether devices exchange gradients in these steps, apart from copies of tied weights."""
    return any(not isinstance(step, SumTiedGrads) and travels(step) for step in steps)
