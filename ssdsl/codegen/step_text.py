"""A role's training step as a function: what it runs, sends, waits for and reduces, in order."""

from typing import assert_never

from ssdsl.codegen.quote import quoted
from ssdsl.codegen.scope import Scope
from ssdsl.ir.action import (
    Action,
    At,
    Compute,
    Free,
    GatherParam,
    Start,
    StartReduce,
    Update,
    Wait,
    WaitReduce,
)
from ssdsl.ir.comm import Message, Signal, Transfer
from ssdsl.ir.value import TimeIndex
from ssdsl.plan.plan import Phase

COMPUTES = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.DGRAD: "backward_inputs",
    Phase.WGRAD: "backward_weights",
}


def step_text(scope: Scope) -> str:
    """The names of the role's messages, and `step(run)`."""
    messages = sorted({a.message for a in scope.role.actions if isinstance(a, Start)})
    head = [f"{_name(scope, m)} = {m}  # {_about(scope.program.messages[m])}" for m in messages]
    what = "One training step" if scope.program.trains else "The forward of one batch"
    body = ["def step(run):", f'    """{what} on {scope.role.submesh}."""']
    body += [f"    run.{_call(action, scope)}" for action in scope.role.actions] or ["    pass"]
    return "\n".join([*head, *(["", ""] if head else []), *body])


def _name(scope: Scope, number: int) -> str:
    message = scope.program.messages[number]
    word = "signal" if isinstance(message, Signal) else "value"
    return scope.names.name(f"message {number}", f"{word}_to_block{message.consumer}")


def _about(message: Message) -> str:
    what = f"`{message.value}`: " if isinstance(message, Transfer) else ""
    return f"{what}{message.source} -> {message.target}"


def _call(action: Action, scope: Scope) -> str:
    program = scope.program
    match action:
        case Compute():
            function = program.functions[action.function]
            return f"{COMPUTES[action.phase]}({_arguments(scope.block(function.number), function.time, action.at)})"
        case Start() | Wait():
            verb = action.end.value if isinstance(action, Start) else "wait"
            verb += "_gradient" if action.gradient else ""
            message = program.messages[action.message]
            time = message.time if isinstance(message, Transfer) else ()
            return f"{verb}({_arguments(_name(scope, action.message), time, action.at)})"
        case Free():
            return f"free({', '.join([quoted(action.slot), *map(str, action.at)])})"
        case StartReduce():
            return f"start_reduce({action.flat})"
        case WaitReduce():
            return f"wait_reduce({action.flat})"
        case Update():
            return "update()"
        case GatherParam():
            return f"gather({action.flat})"
        case _:
            assert_never(action)


def _arguments(first: str, time: tuple[TimeIndex, ...], at: At) -> str:
    return ", ".join([first, *(f"{t.name}={c}" for t, c in zip(time, at, strict=True))])
