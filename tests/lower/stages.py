"""Stages written by hand: functions on devices of their own, and the messages between them."""

from itertools import starmap

from ssdsl.ir.comm import Message, Move, Signal, Transfer
from ssdsl.ir.function import Backward, Function, FunctionInput, OpPart, Parameter, Section
from ssdsl.ir.layout import Layout, Shape
from ssdsl.ir.program import Compute, Role
from ssdsl.ir.value import Name, TimeIndex, Type, Var
from ssdsl.lower.stages import Carry, Scheduled, Task
from ssdsl.plan.plan import Phase, Plan
from ssdsl.record import replace
from tests.lower.by_hand import graph_of, plan_of, staged, submesh

WHOLE = Type(Layout(()))
MOVE = Move((), (), Shape(()), Shape(()))
GRAPH = graph_of("input x[batch]\nweight w[batch]\ny[batch] = mul x[batch] w[batch]\nloss[] = sum y[batch]", batch=8)


def var(value: str, *, learns: bool = True) -> Var:
    return Var(Name(value), WHOLE, WHOLE if learns else None, (), "float32")


def function(
    number: int, axes: dict[str, int], stage: int, parts: int, *inputs: FunctionInput, weights: str = ""
) -> Function:
    """A function on one stage that runs for each of these parts of `m`, and trains these weights."""
    place, time = submesh(axes, pp=stage), (TimeIndex("m", parts),)
    body = Section("", False, (OpPart("y", (), (), ()),))
    parameters = tuple(Parameter(var(w)) for w in weights.split())
    return Function(number, f"block{number}", place, time, inputs, (), parameters, (body,), (), Backward.WHOLE, number)


def transfer(number: int, source: int, target: int, axes: dict[str, int], parts: int = 1) -> Transfer:
    """A value that the function of one stage sends to that of another, and its gradient back."""
    ends, time = (submesh(axes, pp=source), submesh(axes, pp=target)), (TimeIndex("m", parts),)
    slots = f"v{number}", f"v{number} there"
    return Transfer(number, "y", source, target, *ends, *slots, MOVE, MOVE, "float32", time)


def signal(number: int, source: int, target: int, axes: dict[str, int]) -> Signal:
    return Signal(number, source, target, submesh(axes, pp=source), submesh(axes, pp=target), MOVE)


def pipeline(stages: int, parts: int, pairs: list[tuple[int, int]], plan: Plan | None = None) -> Scheduled:
    """Stages, each one function on one device, with a transfer for each pair of them; no tasks yet."""
    axes = {"pp": stages}
    messages = tuple(transfer(n, s, t, axes, parts=parts) for n, (s, t) in enumerate(pairs))
    functions = []
    for stage in range(stages):
        given = (
            FunctionInput(var("y"), m.producer, m.target_slot, m.time, (), True, m.number)
            for m in messages
            if m.consumer == stage
        )
        functions.append(function(stage, axes, stage, parts, *given, weights=f"w{stage}"))
    roles = tuple(Role(f"stage{stage}", submesh(axes, pp=stage), ()) for stage in range(stages))
    plan = plan_of(GRAPH, axes) if plan is None else plan
    return staged(Scheduled, plan, functions=tuple(functions), messages=messages, roles=roles)


def with_tasks(lowering: Scheduled, *tasks: str) -> Scheduled:
    """The lowering with the tasks of each role, in words: `F0` a forward, `B0` a backward, `0.1` message 0 for part 1,
    `0'1` its gradient."""
    return replace(lowering, tasks=tuple(starmap(_tasks, enumerate(tasks))))


def _tasks(stage: int, words: str) -> tuple[Task, ...]:
    return tuple(_task(stage, word) for word in words.split())


def _task(stage: int, word: str) -> Task:
    if word[0] in "FB":
        return Compute(stage, (int(word[1:]),), Phase.FORWARD if word[0] == "F" else Phase.BACKWARD)
    sign = "'" if "'" in word else "."
    message, _, part = word.partition(sign)
    return Carry(int(message), (int(part),), sign == "'")


def words(tasks: tuple[Task, ...]) -> str:
    """Tasks in the same words."""

    def word(task: Task) -> str:
        if isinstance(task, Compute):
            return f"{'F' if task.phase is Phase.FORWARD else 'B'}{task.at[0]}"
        return f"{task.message}{chr(39) if task.gradient else '.'}{task.at[0]}"

    return " ".join(map(word, tasks))


def lanes(lowering: Scheduled, *numbers: int) -> Scheduled:
    """The lowering with the lanes of its messages."""
    messages: tuple[Message, ...] = tuple(replace(m, lane=n) for m, n in zip(lowering.messages, numbers, strict=True))
    return replace(lowering, messages=messages)
