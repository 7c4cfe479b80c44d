"""Turns the actions of roles into steps for `execute`: meetings, posts of exchanges, and waits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from ssdsl.ir.comm import Message, functions_of
from ssdsl.ir.execute import Await, Meet, Post, Roles, Step, Steps
from ssdsl.ir.function import Function
from ssdsl.ir.param import AllReduceGrads, CompletionStep, FlatParam, ReduceScatterGrads
from ssdsl.ir.program import (
    Action,
    Compute,
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
    steps = tuple(tuple(s for a in role.actions for s in found.steps(r, a)) for r, role in enumerate(roles))
    return Steps(tuple(r.name for r in roles), steps, found.describe)


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
    _runs: list[Roles] = field(init=False)  # by function
    _scattered: dict[tuple[int, int], int] = field(default_factory=dict)  # so far, by role and flat parameter

    def __post_init__(self) -> None:
        self.members = Members(self.roles)
        self._runs = [self.members[f.submesh] for f in self.functions]

    def steps(self, r: int, action: Action) -> Iterator[Step]:
        """Yields the steps of an action of role number `r`: none for a drop, or a reduction that exchanges nothing."""
        match action:
            case Compute():
                members = self._runs[action.function]
                yield Meet(action, action, members if len(members) > 1 and self.meets(action) else (r,))
            case Start():
                yield self._start(action)
            case Wait():
                key = action.message, action.at, action.gradient
                yield Await(action, key, self.members.ends(self.messages[action.message], action.gradient)[0])
            case ScatterGrads():
                yield from self._scatter(r, action)
            case StartReduce():
                yield from self._start_reduce(action)
            case WaitReduce():
                yield from self._wait_reduce(r, action)
            case GatherParam():
                yield Meet(action, action, self.members[self.flats[action.flat].submesh])
            case Update():
                yield Meet(action, action, (r,))
            case Free():
                pass
            case _:
                assert_never(action)

    def _start(self, action: Start) -> Step:
        sources, targets = self.members.ends(self.messages[action.message], action.gradient)
        key = action.message, action.at, action.gradient
        return Post(action, key, sources, targets, blocks=self.blocks)

    # -- gradients -----------------------------------------------------------------------------------------------------

    def _scatter(self, r: int, action: ScatterGrads) -> Iterator[Step]:
        """A reduction behind a backward: a meeting, as parts go to their owners at once."""
        flat = self.flats[action.flat]
        times = self._scattered[r, action.flat] = self._scattered.get((r, action.flat), 0) + 1
        if travels(flat.completion.each):
            yield Meet(action, (action, times), self.members[flat.submesh])

    def _start_reduce(self, action: StartReduce) -> Iterator[Step]:
        """The start of the last reduction: a post, which travels while tasks go on, or a meeting if it does not run in
        the background."""
        flat = self.flats[action.flat]
        members = self.members[flat.submesh]
        if not travels(flat.completion.once):
            return
        if not flat.completion.is_background:
            yield Meet(action, action, members)
        elif self.overlaps:
            yield Post(action, action, members, members, flat.submesh)

    def _wait_reduce(self, r: int, action: WaitReduce) -> Iterator[Step]:
        """The wait for a reduction; then a meeting: of the roles that gather the sum, or for a tied weight of all that
        have a copy, to sum these."""
        flat = self.flats[action.flat]
        members = self.members[flat.submesh]
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


def travels(steps: Sequence[CompletionStep]) -> bool:
    """Whether devices exchange gradients in these steps, apart from copies of tied weights."""
    return any(isinstance(step, AllReduceGrads | ReduceScatterGrads) for step in steps)
