"""Writes a role's step: a function that computes, sends, waits and reduces, in order, and another one for what follows
the optimizer's update, which is the caller's."""

from collections.abc import Hashable, Iterable, Iterator, Sequence

from ssdsl.codegen.python_words import quoted
from ssdsl.codegen.scope import FileScope
from ssdsl.ir.comm import Message, Signal, Transfer
from ssdsl.ir.param import CompletionStep, FlatParam, SumTiedGrads
from ssdsl.ir.program import (
    Action,
    BeginReduce,
    Compute,
    DropWeights,
    Free,
    GatherParam,
    KeepWeights,
    OnFlat,
    ScatterGrads,
    Start,
    StartReduce,
    Update,
    Wait,
    WaitReduce,
)
from ssdsl.ir.value import TimeIndex
from ssdsl.plan.plan import Phase
from ssdsl.text.diagnostic import InternalError

COMPUTES = {
    Phase.FORWARD: "forward",
    Phase.AGAIN: "forward_again",
    Phase.BACKWARD: "backward",
    Phase.DGRAD: "backward_inputs",
    Phase.WGRAD: "backward_weights",
}

OF_FLATS = {
    ScatterGrads: "scatter_gradients",
    StartReduce: "start_reduce",
    WaitReduce: "wait_reduce",
    KeepWeights: "keep_weights",
    DropWeights: "drop_weights",
    GatherParam: "start_gather",
}


def step_text(scope: FileScope) -> str:
    """The names of the role's messages, `step(run)`, and `after_update(run)` in a program that trains."""
    messages = sorted({a.message for a in scope.role.actions if isinstance(a, Start)})
    head = [f"{_name(scope, m)} = {m}  # {_about(scope.program.messages[m], scope)}" for m in messages]
    actions, calls = scope.role.actions, _Calls(scope)
    if not scope.program.trains:
        functions = [calls.function("step", f"The forward of one batch on {scope.role.submesh}.", actions)]
    else:
        update = actions.index(Update())
        gathers = actions[update + 1 :]
        about = "Starts to gather the weights that other ranks have updated." if gathers else "Nothing to gather."
        functions = [
            calls.function("step", f"One training step on {scope.role.submesh}, up to the update.", actions[:update]),
            calls.function("after_update", about, gathers),
        ]
    return "\n\n\n".join([*(["\n".join(head)] if head else []), *functions])


def _name(scope: FileScope, number: int) -> str:
    message = scope.program.messages[number]
    word = "signal" if isinstance(message, Signal) else "value"
    return scope.names.name(f"message {number}", f"{word}_to_block{message.consumer}")


def _about(message: Message, scope: FileScope) -> str:
    """A comment: `add_11`, transformer.h.1 add: gpus[pp = 0] -> gpus[pp = 1]; plan.ssp:4: assign stage to gpus[pp]"""
    origins = scope.common.origins
    what = f"`{message.value}`, {origins.value(message.value)}: " if isinstance(message, Transfer) else ""
    plan = origins.message(scope.program.functions[message.consumer])
    return "; ".join(filter(None, (f"{what}{message.source} -> {message.target}", plan)))


class _Calls:
    """The calls of a role's actions. Actions that differ only in their parts share a template."""

    def __init__(self, scope: FileScope) -> None:
        self.scope, self.program = scope, scope.program
        self.templates: dict[Hashable, str] = {}

    def function(self, name: str, about: str, actions: Iterable[Action]) -> str:
        """A function of the file that calls what some actions say."""
        return "\n".join(
            [f"def {name}(run):", f'    """{about}"""', *(self.of(*joined) for joined in _joined(actions))]
        )

    def of(self, action: Action, starts: Sequence[BeginReduce] = ()) -> str:
        """The line for an action, and for the starts of reductions within it."""
        match action:
            case Compute() if starts:
                return f"    run.{self._template(action, starts) % action.at}  # {self._about_flats(starts)}"
            case Compute():
                key: Hashable = action.function, action.phase
            case Start():
                key = action.message, action.gradient, action.end
            case Wait():
                key = action.message, action.gradient
            case Free():
                key = action.slot, len(action.at)
            case OnFlat():
                comment = self._about_flats([action])
                return f"    run.{OF_FLATS[type(action)]}({action.flat}){comment and f'  # {comment}'}"
            case Update():
                raise InternalError("a step has one update, which is not written")
        if key not in self.templates:
            self.templates[key] = f"    run.{self._template(action)}"
        return self.templates[key] % action.at

    def _about_flats(self, actions: Sequence[OnFlat]) -> str:
        """A comment: `head.weight and 2 more: all_reduce over dp; plan.ssp:2: split model by batch into dp`."""
        names, plans = dict[str, list[str]](), dict[str, None]()  # by the steps
        for action in actions:
            flat = self.program.flats[action.flat]
            if steps := _steps(action, flat):
                more = f" and {len(flat.weights) - 1} more" if len(flat.weights) > 1 else ""
                names.setdefault(steps, []).append(f"{flat.weights[0]}{more}")
                plans[self.scope.common.origins.flat(flat)] = None
        about = (f"{', '.join(of)}: {steps}" for steps, of in names.items())
        return "; ".join(filter(None, (*about, *plans)))

    def _template(self, action: Compute | Start | Wait | Free, starts: Sequence[BeginReduce] = ()) -> str:
        match action:
            case Compute():
                function = self.program.functions[action.function]
                block = ", ".join(
                    [self.scope.block(function.number), *([str([s.flat for s in starts])] if starts else [])]
                )
                return f"{COMPUTES[action.phase]}({_arguments(block, function.time)})"
            case Start() | Wait():
                verb = action.end.value if isinstance(action, Start) else "wait"
                verb += "_gradient" if action.gradient else ""
                message = self.program.messages[action.message]
                time = message.time if isinstance(message, Transfer) else ()
                return f"{verb}({_arguments(_name(self.scope, action.message), time)})"
            case Free():
                return f"free({', '.join([quoted(action.slot).replace('%', '%%'), *('%d' for _ in action.at)])})"


def _joined(actions: Iterable[Action]) -> Iterator[tuple[Action, list[BeginReduce]]]:
    """Yields each action with the starts within it, which stand behind it."""
    last: tuple[Action, list[BeginReduce]] | None = None
    for action in actions:
        if last is not None and isinstance(action, BeginReduce) and action.within:
            last[1].append(action)
            continue
        if last is not None:
            yield last
        last = action, []
    if last is not None:
        yield last


def _steps(action: OnFlat, flat: FlatParam) -> str:
    """The steps of an action on a flat parameter; empty for a wait."""
    match action:
        case ScatterGrads():
            return ", ".join(map(_over, flat.completion.each))
        case StartReduce():
            return ", ".join(map(_over, flat.completion.once))
        case KeepWeights() if flat.kept is not None and flat.kept.axes:
            return f"gathered over {', '.join(flat.kept.axes)} from here on"
        case GatherParam():
            return f"all_gather over {', '.join(flat.sharded.updated)}"
        case _:
            return ""


def _arguments(first: str, time: tuple[TimeIndex, ...]) -> str:
    return ", ".join([first, *(f"{t.name}=%d" for t in time)])


def _over(step: CompletionStep) -> str:
    return f"{step.kind} over {'the tied copies' if isinstance(step, SumTiedGrads) else ', '.join(step.axes)}"
