"""What goes wrong with the order of the actions of a role."""

from collections.abc import Callable, Iterator

from ssdsl.ir.comm import Transfer
from ssdsl.ir.program import (
    Action,
    BeginReduce,
    Compute,
    DropWeights,
    End,
    Free,
    GatherParam,
    KeepWeights,
    Program,
    ScatterGrads,
    Start,
    StartReduce,
    Update,
    Wait,
    WaitReduce,
)
from ssdsl.plan.plan import Phase
from ssdsl.record import replace
from tests.prove.mutations.mutant import Found, mutation, put


def _actions(
    program: Program,
) -> Iterator[tuple[str, int, tuple[Action, ...], int, Callable[[tuple[Action, ...]], Program]]]:
    for n, role in enumerate(program.roles):

        def become(actions: tuple[Action, ...], n: int = n) -> Program:
            return replace(program, roles=put(program.roles, n, replace(program.roles[n], actions=actions)))

        for k, action in enumerate(role.actions):
            yield f"{role.name} {k} {action}", n, role.actions, k, become


def moved(actions: tuple[Action, ...], k: int, to: int) -> tuple[Action, ...]:
    """Action number k moved in front of what is number `to`."""
    rest = [*actions[:k], *actions[k + 1 :]]
    rest.insert(to if to <= k else to - 1, actions[k])
    return tuple(rest)


@mutation
def action_dropped(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        yield where, become(put(actions, k))


@mutation
def action_doubled(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        yield where, become(put(actions, k, actions[k], actions[k]))


@mutation
def wait_forgotten_until_later(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        if isinstance(actions[k], Wait):
            to = next((j for j in range(k, len(actions)) if isinstance(actions[j], Compute)), None)
            if to is not None:
                yield where, become(moved(actions, k, to + 1))


@mutation
def sent_too_early(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        action = actions[k]
        if (
            isinstance(action, Start)
            and action.end is not End.RECEIVE
            and isinstance(program.messages[action.message], Transfer)
        ):
            yield where, become(moved(actions, k, 0))


@mutation
def received_too_late(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        action = actions[k]
        if isinstance(action, Start) and action.end is End.RECEIVE:
            wait = Wait(action.message, action.at, action.gradient)
            if wait in actions:
                yield where, become(moved(actions, k, actions.index(wait) + 1))


@mutation
def freed_too_early(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        if isinstance(actions[k], Free):
            to = max(j for j in range(k) if isinstance(actions[j], Compute | Start))
            yield where, become(moved(actions, k, to))


@mutation
def updated_too_early(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        if isinstance(actions[k], Update):
            yield f"{where} first", become(moved(actions, k, 0))
            if any(isinstance(a, Compute) for a in actions[:k]):
                last = max(j for j in range(k) if isinstance(actions[j], Compute | WaitReduce))
                yield f"{where} before the last", become(moved(actions, k, last))


@mutation
def kept_too_long(program: Program) -> Found:
    """Weights that stay through the update that changes them, or that are kept twice."""
    for where, _, actions, k, become in _actions(program):
        if isinstance(actions[k], DropWeights):
            yield where, become(moved(actions, k, actions.index(Update()) + 1))
        if isinstance(actions[k], KeepWeights):
            yield where, become((*actions, actions[k]))


@mutation
def kept_on_some_devices(program: Program) -> Found:
    """One role drops weights a task earlier than the others of its devices do."""
    for where, n, actions, k, become in _actions(program):
        if isinstance(action := actions[k], DropWeights):
            others = (r for r in program.roles if r is not program.roles[n] and action in r.actions)
            if any(others):
                last = max(j for j in range(k) if isinstance(actions[j], Compute))
                yield where, become(moved(actions, k, last))


@mutation
def gathered_too_early(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        if isinstance(actions[k], GatherParam):
            yield where, become(moved(actions, k, actions.index(Update())))


@mutation
def reduced_too_early(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        action = actions[k]
        if not isinstance(action, ScatterGrads | StartReduce):
            continue
        weights = set(program.flats[action.flat].weights)
        adding = [
            j
            for j, a in enumerate(actions[:k])
            if isinstance(a, Compute)
            and a.phase in (Phase.BACKWARD, Phase.WGRAD)
            and weights & {p.var.name.value for p in program.functions[a.function].parameters}
        ]
        if adding:
            yield where, become(moved(actions, k, adding[-1]))


@mutation
def reduced_within_a_wrong_task(program: Program) -> Found:
    """A start that its task does not complete, or one that stands behind another action."""
    for where, _, actions, k, become in _actions(program):
        action = actions[k]
        if isinstance(action, BeginReduce) and not action.within:
            yield where, become(put(actions, k, replace(action, within=True)))
        elif isinstance(action, BeginReduce):
            others = (j for j in range(k, len(actions)) if not isinstance(actions[j], BeginReduce))
            if (other := next(others, None)) is not None:
                yield f"{where} behind", become(moved(actions, k, other + 1))


@mutation
def task_of_another_part(program: Program) -> Found:
    """A micro-batch twice, and another never; for messages too."""
    for where, _, actions, k, become in _actions(program):
        action = actions[k]
        if isinstance(action, Compute | Start | Wait | Free):
            for j, c in enumerate(action.at):
                yield where, become(put(actions, k, action._replace(at=put(action.at, j, c + 1 if c == 0 else c - 1))))


@mutation
def task_of_another_phase(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        action = actions[k]
        if isinstance(action, Compute):
            for phase in Phase:
                if phase is not action.phase:
                    yield f"{where} {phase.value}", become(put(actions, k, action._replace(phase=phase)))


@mutation
def task_of_another_function(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        action = actions[k]
        if isinstance(action, Compute) and len(program.functions) > 1:
            other = (action.function + 1) % len(program.functions)
            yield where, become(put(actions, k, action._replace(function=other)))


@mutation
def backward_before_forward(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        action = actions[k]
        if isinstance(action, Compute) and action.phase is not Phase.FORWARD:
            before = Phase.DGRAD if action.phase is Phase.WGRAD else Phase.FORWARD
            first = actions.index(action._replace(phase=before)) if action._replace(phase=before) in actions else None
            if first is not None:
                yield where, become(moved(actions, k, first))


@mutation
def forward_before_its_input(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        action = actions[k]
        is_forward = isinstance(action, Compute) and action.phase is Phase.FORWARD
        if k and is_forward and program.functions[action.function].inputs:
            yield where, become(moved(actions, k, 0))


@mutation
def late_task_in_front(program: Program) -> Found:
    """What waits for all parts along an index runs when the last is not there yet."""
    for where, _, actions, k, become in _actions(program):
        action = actions[k]
        if not isinstance(action, Compute) or action.phase is not Phase.FORWARD:
            continue
        own = {t.name for t in program.functions[action.function].time}
        for given in program.functions[action.function].inputs:
            parts = [
                j
                for j, a in enumerate(actions[:k])
                if isinstance(a, Compute) and a.function == given.producer and a.phase is Phase.FORWARD
            ]
            if parts and {t.name for t in given.time} - own:
                yield where, become(moved(actions, k, parts[-1]))
                break


@mutation
def message_changed(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        action = actions[k]
        if isinstance(action, Start):
            for end in End:
                if end is not action.end:
                    yield f"{where} {end.value}", become(put(actions, k, action._replace(end=end)))
        if isinstance(action, Start | Wait):
            yield f"{where} other way", become(put(actions, k, action._replace(gradient=not action.gradient)))
            yield f"{where} other message", become(put(actions, k, action._replace(message=action.message + 1)))


@mutation
def posts_exchanged(program: Program) -> Found:
    """Two messages between the same roles, posted in another order at one end."""
    for where, _n, actions, k, become in _actions(program):
        action = actions[k]
        if not isinstance(action, Start):
            continue
        later = next(
            (
                j
                for j in range(k + 1, len(actions))
                if isinstance(b := actions[j], Start) and b.gradient is action.gradient
            ),
            None,
        )
        if later is not None:
            other = actions[later]
            yield where, become(put(put(actions, k, other), later, action))
