"""Prints a partly lowered plan, for `ssdsl compile --print-after PASS`."""

from collections.abc import Iterable, Iterator

from ssdsl.ir.layout import Submesh
from ssdsl.ir.program import Compute, Role
from ssdsl.ir.text.comm import message_lines
from ssdsl.ir.text.function import function_lines, prologue_lines, splits_text
from ssdsl.ir.text.program import ActionText, at_text, flat_lines, loss_text, mesh_text, param_text, role_lines
from ssdsl.ir.text.types import names_text, time_text
from ssdsl.lower.lowering import Lowering, Segment, Task
from ssdsl.model.graph import Operator, Stage
from ssdsl.plan.plan import Phase


def lowering_text(lowering: Lowering) -> str:
    """The text of everything that is decided so far. A form that a later one replaces (operators by functions) is left
    out."""
    return "\n\n".join("\n".join(block) for block in _blocks(lowering) if block) + "\n"


def _blocks(lowering: Lowering) -> Iterator[list[str]]:
    graph, names = lowering.graph, tuple(f.name for f in lowering.functions)
    yield [f"lowering of {graph.name}", *map(mesh_text, lowering.plan.meshes)]
    if not lowering.functions:
        operators = [o for o in graph.operators if o.stage is Stage.COMPUTE]
        if lowering.segments:
            yield from (list(_segment(lowering, n, s)) for n, s in enumerate(lowering.segments))
        else:
            yield [_operator(lowering, o) for o in operators]
    yield [param_text(p, graph) for p in lowering.params]
    yield [line for f in lowering.flats for line in flat_lines(f)]
    yield from (list(prologue_lines(p, graph)) for p in lowering.prologues)
    yield from (list(function_lines(f, graph, names)) for f in lowering.functions)
    yield [line for m in lowering.messages for line in message_lines(m, names)]
    yield from _roles(lowering)
    if lowering.loss is not None:
        yield [loss_text(lowering.loss, names)]


def _operator(lowering: Lowering, operator: Operator) -> str:
    """The line of an operator: `h.0.mlp.c_fc: linear (linear_3) on gpus over (ffn: tp)`."""
    submesh = lowering.submeshes.get(operator.name)
    learns = any(o.value in lowering.learning for o in operator.outputs)
    sunk = sorted(lowering.sunk.get(operator.name, ()))
    words = [
        f"{operator.path}: {operator.kind} ({operator.name})".removeprefix(": "),
        f"on {submesh}" if submesh is not None else "",
        splits_text(lowering.splits.get(operator.name, ()), operator),
        "" if learns or not lowering.learning else "no gradient",
        f"gradient stays partial over {names_text(sunk)}" if sunk else "",
    ]
    return " ".join(filter(None, words))


def _segment(lowering: Lowering, number: int, segment: Segment) -> Iterator[str]:
    halves = " backward in halves" if segment.in_halves else ""
    yield f"segment {number} on {segment.submesh}{time_text(segment.time)}{halves} stage {segment.stage}"
    yield from (f"  {_operator(lowering, o)}" for o in segment.operators)


def _roles(lowering: Lowering) -> Iterator[list[str]]:
    if any(role.actions for role in lowering.roles):
        text = ActionText(lowering.program())
        yield from (list(role_lines(role, text)) for role in lowering.roles)
        return
    for role, tasks in zip(lowering.roles, lowering.tasks, strict=True):
        yield [f"role {role.name} on {role.submesh}", *(f"  {_task(lowering, role, t)}" for t in tasks)]


def _task(lowering: Lowering, role: Role, task: Task) -> str:
    if isinstance(task, Compute):
        function = lowering.functions[task.function]
        phase = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward"}.get(task.phase, task.phase.value)
        return f"{phase} {function.name}{at_text(task.at, function.time)}"
    message = lowering.messages[task.message]
    source, target = message.ends(task.gradient)
    what = f"{'gradient of ' if task.gradient else ''}message{message.number}"
    at = at_text(task.at, lowering.functions[message.producer].time) if task.at else ""
    return f"{_direction(role, source, target)} {what}{at}"


def _direction(role: Role, source: Submesh, target: Submesh) -> str:
    ends: Iterable[str] = (w for w, s in (("send", source), ("receive", target)) if role.is_in(s))
    return " and ".join(ends)
