"""Turns the actions of roles into steps for `execute`: meetings, posts of exchanges, and waits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from ssdsl.ir.comm import Message, functions_of, travels
from ssdsl.ir.execute import Await, Meet, Post, Roles, Step, Steps
from ssdsl.ir.function import Function
from ssdsl.ir.param import CompletionStep, FlatParam, SumTiedGrads
from ssdsl.ir.program import (
    Action,
    Compute,
    FlatAction,
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
from ssdsl.plan.plan import Phase


def steps_of(
    roles: Sequence[Role],
    functions: Sequence[Function],
    messages: Sequence[Message],
    flats: Sequence[FlatParam],
    *,
    meets: Callable[[Compute], bool] = lambda action: True,
    overlaps: bool = True,
    blocks: bool = False,
) -> Steps:
    """The steps of the roles' actions.

    `meets`: whether a computation brings the roles of its function together (it has collectives). Without `overlaps`
    gradients are reduced where they are awaited, not in the background. With `blocks` a sender waits until it has sent.
    """
    found = _Translation(tuple(roles), functions, messages, flats, meets, overlaps, blocks)
    of_role = tuple(tuple(found.of(r, role.actions)) for r, role in enumerate(roles))
    return Steps(tuple(r.name for r in roles), of_role, found.describe)


@dataclass(slots=True)
class _Translation:
    roles: tuple[Role, ...]
    functions: Sequence[Function]
    messages: Sequence[Message]
    flats: Sequence[FlatParam]
    meets: Callable[[Compute], bool]
    overlaps: bool
    blocks: bool
    members: Members = field(init=False)
    _together: dict[tuple[int, Phase], Roles] = field(default_factory=dict)  # by function; () if they do not meet

    def __post_init__(self) -> None:
        self.members = Members(self.roles)

    def of(self, r: int, actions: Sequence[Action]) -> Iterator[Step]:
        """Yields the steps of role number `r`. A drop has none, nor has a reduction that exchanges nothing."""
        for action in actions:
            match action:
                case Compute():
                    yield Meet(action, action, self._meeting(action) or (r,))
                case Start():
                    sources, targets = self._ends(action)
                    yield Post(action, action[:3], sources, targets, None, self.blocks)
                case Wait():
                    yield Await(action, action, self._ends(action)[0])
                case Free():
                    pass
                case Update():
                    yield Meet(action, action, (r,))
                case GatherParam():
                    yield Meet(action, action, self._devices(action))
                case ScatterGrads():  # a meeting, as parts go to their owners at once
                    if _is_reduced(self.flats[action.flat].completion.each):
                        yield Meet(action, action, self._devices(action))
                case StartReduce():
                    yield from self._start_reduce(action)
                case WaitReduce():
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

    def _ends(self, action: Start | Wait) -> tuple[Roles, Roles]:
        return self.members.ends(self.messages[action.message], action.gradient)

    # -- gradients -----------------------------------------------------------------------------------------------------

    def _devices(self, action: FlatAction) -> Roles:
        return self.members[self.flats[action.flat].submesh]

    def _start_reduce(self, action: StartReduce) -> Iterator[Step]:
        """The start of the last reduction: a post, which travels while tasks go on, or a meeting if it does not run in
        the background."""
        flat, members = self.flats[action.flat], self._devices(action)
        if not _is_reduced(flat.completion.once):
            return
        if not flat.completion.is_background:
            yield Meet(action, action, members)
        elif self.overlaps:
            yield Post(action, action, members, members, flat.submesh)

    def _wait_reduce(self, r: int, action: WaitReduce) -> Iterator[Step]:
        """The wait for a reduction; then a meeting: of the roles that gather the sum, or for a tied weight of all that
        have a copy, to sum these."""
        flat, members = self.flats[action.flat], self._devices(action)
        if flat.completion.is_background:
            start = StartReduce(action.flat)
            yield Await(action, start, members) if self.overlaps else Meet(start, start, members)
        if tied := flat.completion.tied:
            together = tuple(sorted({m for s in tied for m in self.members[s]}))
            yield Meet(action, ("tied", flat.weights), together)
        else:
            yield Meet(action, action, members if flat.completion.awaited else (r,))

    def describe(self, action: Action) -> str:
        """An action as the views show it: `block0.fwd[m = 2]`, `message 3 of block1[m = 0]`."""
        match action:
            case Compute():
                function, phase = self.functions[action.function], f".{action.phase}"
                what = ""
            case Start() | Wait():
                message = self.messages[action.message]
                function = self.functions[functions_of(message, action.gradient)[0]]
                what, phase = f"message {action.message} of ", ".bwd" if action.gradient else ".fwd"
            case _:
                return str(action)
        at = zip(function.time, action.at, strict=False)
        inside = ", ".join(f"{t.name} = {c}" for t, c in at)
        return f"{what}{function.name}{phase}" + (f"[{inside}]" if inside else "")


def _is_reduced(steps: Sequence[CompletionStep]) -> bool:
    """Whether devices exchange gradients in these steps, apart from copies of tied weights."""
    return any(not isinstance(step, SumTiedGrads) and travels(step) for step in steps)
