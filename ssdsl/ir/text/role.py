"""The text of roles: the actions of their devices in a step, one a line: `forward block0[m = 0]`."""

from collections.abc import Iterator
from typing import assert_never

from ssdsl.ir.comm import Transfer
from ssdsl.ir.program import (
    Action,
    Compute,
    Free,
    GatherParam,
    Program,
    Role,
    ScatterGrads,
    Start,
    StartReduce,
    Update,
    Wait,
    WaitReduce,
)
from ssdsl.ir.value import TimeIndex
from ssdsl.plan.plan import Phase

PHASES = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward", Phase.DGRAD: "dgrad", Phase.WGRAD: "wgrad"}


class ActionText:
    """Writes the actions of a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.slots = {o.slot: f.time for f in program.functions for o in f.outputs}
        self.slots |= {m.target_slot: m.time for m in program.messages if isinstance(m, Transfer)}

    def of(self, action: Action) -> str:
        """An action in a few words."""
        match action:
            case Compute():
                function = self.program.functions[action.function]
                return f"{PHASES[action.phase]} {function.name}{at_text(action.at, function.time)}"
            case Start():
                return f"{action.end.value} {self._message(action)}"
            case Wait():
                return f"wait {self._message(action)}"
            case Free():
                return f'free "{action.slot}"{at_text(action.at, self.slots[action.slot])}'
            case ScatterGrads():
                return f"scatter gradients of flat{action.flat}"
            case StartReduce():
                return f"start reduce flat{action.flat}"
            case WaitReduce():
                return f"wait reduce flat{action.flat}"
            case Update():
                return "update"
            case GatherParam():
                return f"gather flat{action.flat}"
            case _:
                assert_never(action)

    def _message(self, action: Start | Wait) -> str:
        message = self.program.messages[action.message]
        time = message.time if isinstance(message, Transfer) else ()
        if not isinstance(message, Transfer) and action.at:
            time = self.program.functions[message.producer].time
        return f"{'gradient of ' if action.gradient else ''}message{action.message}{at_text(action.at, time)}"

    def stated(self, action: Action) -> str:
        """A comment with the lines of the plan that gave an action its place; empty if there are none."""
        spans = self.program.stated.get(action, ()) if isinstance(action, Compute) else ()
        lines = [str(span.source.line_column(span.start)[0]) for span in spans]
        return f"  # line {', '.join(lines)}" if lines else ""


def role_lines(role: Role, text: ActionText) -> Iterator[str]:
    """Yields the lines of a role: its header, and its actions in order."""
    yield f"role {role.name} on {role.submesh}"
    yield from (f"  {text.of(action)}{text.stated(action)}" for action in role.actions)


def at_text(at: tuple[int, ...], time: tuple[TimeIndex, ...]) -> str:
    """Coordinates in time by the names of their indices: `[m = 0]`."""
    inside = ", ".join(f"{t.name} = {c}" for t, c in zip(time, at, strict=True))
    return f"[{inside}]" if inside else ""
