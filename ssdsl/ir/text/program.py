"""The text of a whole program, or of the parts of it that some roles have; the actions of a role are one a line:
`forward block0[m = 0]`."""

from collections.abc import Iterable, Iterator
from typing import assert_never

from ssdsl.ir.comm import Transfer
from ssdsl.ir.layout import Submesh
from ssdsl.ir.param import Completion, FlatParam, Home, Kept, Param, StateAxes
from ssdsl.ir.program import (
    Action,
    Compute,
    DropWeights,
    Free,
    GatherParam,
    KeepWeights,
    Loss,
    Program,
    Result,
    Role,
    ScatterGrads,
    Start,
    StartReduce,
    Update,
    Wait,
    WaitReduce,
)
from ssdsl.ir.text.comm import completion_text, message_lines
from ssdsl.ir.text.function import function_lines, prologue_lines
from ssdsl.ir.text.types import dtype_text, gradient_text, layout_text, names_text
from ssdsl.ir.value import TimeIndex, Type, local_sizes
from ssdsl.model.graph import Graph
from ssdsl.plan.plan import Mesh

Block = list[str]


def program_text(program: Program, roles: Iterable[Role] | None = None) -> str:
    """The whole text, or the parts of it that these roles have; it ends with a newline."""
    return "\n\n".join("\n".join(block) for block in program_blocks(program, roles)) + "\n"


def program_blocks(program: Program, roles: Iterable[Role] | None = None) -> Iterator[Block]:
    """The parts of the text, each a list of lines: meshes, parameters, prologues, functions, messages, roles, loss."""
    shown = program.roles if roles is None else tuple(roles)

    def is_shown(submesh: Submesh) -> bool:
        return roles is None or any(role.is_in(submesh) for role in shown)

    graph, names = program.graph, tuple(f.name for f in program.functions)
    yield [f"{'program' if program.trains else 'forward'} of {graph.name}", *map(mesh_text, program.plan.meshes)]
    if params := [param_text(p, graph) for p in program.params if is_shown(p.submesh)]:
        yield params
    if flats := [line for f in program.flats if is_shown(f.submesh) for line in flat_lines(f)]:
        yield flats
    if program.unreached:
        yield [f"not reached by this loss: {', '.join(sorted(program.unreached))}"]
    yield from (list(prologue_lines(p, graph)) for p in program.prologues if is_shown(p.submesh))
    yield from (list(function_lines(f, program.plan, names)) for f in program.functions if is_shown(f.submesh))
    messages = [m for m in program.messages if is_shown(m.source) or is_shown(m.target)]
    if lines := [line for m in messages for line in message_lines(m, names)]:
        yield lines
    text = ActionText(program)
    yield from (list(role_lines(role, text)) for role in shown)
    yield [*(loss_text(loss, names) for loss in program.losses), *(result_text(r, names) for r in program.results)]


def mesh_text(mesh: Mesh) -> str:
    """The line of a mesh: `mesh gpus(pp = 2, dp = 2) ranks 0..4`; the last rank is excluded."""
    size = 1
    for _, n in mesh.axes:
        size *= n
    axes = ", ".join(f"{a} = {n}" for a, n in mesh.axes)
    return f"mesh {mesh.name}({axes}) ranks {mesh.first}..{mesh.first + size}"


def param_text(param: Param, graph: Graph) -> str:
    """The line of a weight or buffer: its local shape, its layout, and its gradient's layout."""
    axes = param.submesh.axes
    local = ", ".join(map(str, local_sizes(param.shape, Type(param.layout), axes)))
    words = [f"param {param.weight} on {param.submesh} : {dtype_text(param.dtype)}[{local}]"]
    words.append(layout_text(param.layout, param.weight, graph, axes))
    text = " ".join(filter(None, words))
    if not param.trained:
        return f"{text}; not trained"
    if param.gradient == param.layout:
        return text
    gradient = gradient_text(Type(param.layout), Type(param.gradient), param.weight, graph, axes)
    return f"{text}; gradient {gradient}"


def flat_lines(flat: FlatParam) -> Iterator[str]:
    """Yields the lines of a flat parameter: the shards of its state, the completion of its gradient, and its weights in
    order."""
    size = f"{dtype_text(flat.dtype)}[{flat.elements}]"
    completed = _completed(flat.completion, stays_whole=flat.stays_whole)
    about = f"{_sharded(flat.sharded)}{_ahead(flat)}{_kept(flat.kept)}{completed}"
    about += f"; {flat.on_host} on host" if flat.on_host else ""
    yield f"flat{flat.number} on {flat.submesh} : {size}{about}"
    homes = flat.homes or [None] * len(flat.weights)
    yield from (f"  {weight}{_home(home)}" for weight, home in zip(flat.weights, homes, strict=True))


def _home(home: Home | None) -> str:
    """The place where the optimizer steps on a whole weight: ` whole at dp = 1, tp = 0`."""
    if home is None:
        return ""
    return f" whole at {', '.join(f'{axis} = {at}' for axis, at in zip(home.axes, home.at, strict=True))}"


def _sharded(sharded: StateAxes) -> str:
    """The states that are in parts: one that is cut over some axes stands for those behind it.

    >>> _sharded(StateAxes((), ("dp",), ("dp",))), _sharded(StateAxes(("gpu",), ("gpu",), ("gpu", "node")))
    (' zero grads over (dp)', ' zero weights over (gpu), optimizer over (gpu, node)')
    >>> _sharded(StateAxes((), (), ("dp",), (("dp", (3, 3, 2)),)))
    ' zero optimizer over (dp = 3:3:2)'
    """
    portions = {axis: f"{axis} = {':'.join(map(str, own))}" for axis, own in sharded.portions}
    states = ("weights", sharded.weights), ("grads", sharded.grads), ("optimizer", sharded.optimizer)
    pairs = zip(states, sharded.levels, strict=True)
    named = ((state, [portions.get(axis, axis) for axis in axes]) for (state, axes), further in pairs if further)
    cut = [f"{state} over {names_text(axes)}" for state, axes in named]
    return f" zero {', '.join(cut)}" if cut else ""


def _ahead(flat: FlatParam) -> str:
    return f", {flat.ahead} ahead" if flat.ahead else ""


def _kept(kept: Kept | None) -> str:
    """How long gathered weights stay.

    >>> _kept(Kept(through="m", in_backward=True)), _kept(Kept(("gpu",)))
    (', kept through m in backward', ', kept over (gpu) through step')
    """
    if kept is None:
        return ""
    over = f" over {names_text(kept.axes)}" if kept.axes else ""
    return f", kept{over} through {kept.through or 'step'}{' in backward' if kept.in_backward else ''}"


def _completed(completion: Completion, *, stays_whole: bool = False) -> str:
    """The steps that complete a gradient, with those that run more than once a step marked.

    >>> from ssdsl.ir.comm import AllReduce, ReduceScatter
    >>> from ssdsl.ir.layout import Cut
    >>> _completed(Completion((ReduceScatter(("gpu",), 8, Cut(0, 1, 2)),), once=(AllReduce(("node",), 4),)))
    '; gradient by reduce_scatter<gpu> in backward, all_reduce<node>'
    """
    each = " where they are dropped" if stays_whole else " after each backward"
    runs = (completion.in_backward, " in backward"), (completion.each, each), (completion.once, "")
    steps = [f"{completion_text(step)}{when}" for found, when in runs for step in found]
    return f"; gradient by {', '.join(steps)}" if steps else ""


def loss_text(loss: Loss, names: tuple[str, ...]) -> str:
    """The line of the loss: its output, and the axes over which its parts are summed."""
    axes = f" summed over {names_text(loss.axes)}" if loss.axes else ""
    return f"loss %{loss.name} of {names[loss.function]}{axes}"


def result_text(result: Result, names: tuple[str, ...]) -> str:
    """The line of an output that was asked for by name: its value, and the slot that keeps it."""
    return f'result {result.name} is %{result.value} of {names[result.function]} in slot "{result.slot}"'


# -- roles -------------------------------------------------------------------------------------------------------------


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
                return f"{action.phase.word} {function.name}{at_text(action.at, function.time)}"
            case Start():
                return f"{action.end.value} {self._message(action)}"
            case Wait():
                return f"wait {self._message(action)}"
            case Free():
                return f'free "{action.slot}"{at_text(action.at, self.slots[action.slot])}'
            case ScatterGrads():
                return f"scatter gradients of flat{action.flat}{' within' if action.within else ''}"
            case StartReduce():
                return f"start reduce flat{action.flat}{' within' if action.within else ''}"
            case KeepWeights():
                return f"keep flat{action.flat}"
            case DropWeights():
                return f"drop flat{action.flat}"
            case WaitReduce():
                return f"wait reduce flat{action.flat}"
            case Update():
                return "update"
            case GatherParam():
                return f"start gather flat{action.flat}"
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
