"""Prints a partly lowered plan, for `ssdsl compile --print-after PASS`."""

from collections.abc import Iterable, Iterator

from ssdsl.ir.function import OpSplit
from ssdsl.ir.layout import Submesh
from ssdsl.ir.program import Compute, Role
from ssdsl.ir.text.comm import message_lines
from ssdsl.ir.text.function import function_lines, prologue_lines, splits_text
from ssdsl.ir.text.program import ActionText, at_text, flat_lines, loss_text, mesh_text, param_text, role_lines
from ssdsl.ir.text.types import names_text, time_text
from ssdsl.lower.stages import (
    Assembled,
    Divided,
    Formed,
    Placed,
    Planned,
    Provided,
    Scheduled,
    Segment,
    Segmented,
    Stored,
    Summed,
    Sunk,
    Task,
)
from ssdsl.model.graph import Operator, Stage


def stage_text(stage: Planned) -> str:
    """The text of everything that is decided so far. A form that a later one replaces (operators by functions) is left
    out."""
    return "\n\n".join("\n".join(block) for block in _blocks(stage) if block) + "\n"


def _blocks(stage: Planned) -> Iterator[list[str]]:
    graph = stage.graph
    yield [f"lowering of {graph.name}", *map(mesh_text, stage.plan.meshes)]
    names = tuple(f.name for f in stage.functions) if isinstance(stage, Assembled) else ()
    if isinstance(stage, Segmented) and not isinstance(stage, Assembled):
        yield from (list(_segment(stage, n, s)) for n, s in enumerate(stage.segments))
    elif not isinstance(stage, Segmented):
        yield [_operator(stage, o) for o in graph.operators if o.stage is Stage.COMPUTE]
    if isinstance(stage, Stored):
        yield [param_text(p, graph) for p in stage.params]
    if isinstance(stage, Formed):
        yield [line for f in stage.flats for line in flat_lines(f)]
    if isinstance(stage, Provided):
        yield from (list(prologue_lines(p, graph)) for p in stage.prologues)
    if isinstance(stage, Assembled):
        yield from (list(function_lines(f, stage.plan, names)) for f in stage.functions)
        yield [line for m in stage.messages for line in message_lines(m, names)]
    if isinstance(stage, Scheduled):
        yield from _roles(stage)
    if isinstance(stage, Assembled):
        yield [loss_text(loss, names) for loss in stage.losses]


def _operator(stage: Planned, operator: Operator) -> str:
    """The line of an operator: `h.0.mlp.c_fc: linear (linear_3) on gpus over (ffn: tp)`."""
    submesh = stage.submeshes.get(operator.name) if isinstance(stage, Placed) else None
    learning = stage.learning if isinstance(stage, Placed) else frozenset[str]()
    splits: tuple[OpSplit, ...] = ()
    if isinstance(stage, Summed):
        splits = (stage.splits if isinstance(stage, Divided) else stage.sums).get(operator.name, ())
    sunk = sorted(stage.sunk.get(operator.name, ())) if isinstance(stage, Sunk) else ()
    learns = any(o.value in learning for o in operator.outputs)
    words = [
        f"{operator.path}: {operator.kind} ({operator.name})".removeprefix(": "),
        f"on {submesh}" if submesh is not None else "",
        splits_text(splits, operator),
        "" if learns or not learning else "no gradient",
        f"gradient stays partial over {names_text(sunk)}" if sunk else "",
    ]
    return " ".join(filter(None, words))


def _segment(stage: Segmented, number: int, segment: Segment) -> Iterator[str]:
    halves = " backward in halves" if segment.in_halves else ""
    yield f"segment {number} on {segment.submesh}{time_text(segment.time)}{halves} stage {segment.stage}"
    yield from (f"  {_operator(stage, o)}" for o in segment.operators)


def _roles(stage: Scheduled) -> Iterator[list[str]]:
    if any(role.actions for role in stage.roles):
        text = ActionText(stage.program())
        yield from (list(role_lines(role, text)) for role in stage.roles)
        return
    for role, tasks in zip(stage.roles, stage.tasks, strict=True):
        yield [f"role {role.name} on {role.submesh}", *(f"  {_task(stage, role, t)}" for t in tasks)]


def _task(stage: Scheduled, role: Role, task: Task) -> str:
    if isinstance(task, Compute):
        function = stage.functions[task.function]
        return f"{task.phase.word} {function.name}{at_text(task.at, function.time)}"
    message = stage.messages[task.message]
    source, target = message.ends(task.gradient)
    what = f"{'gradient of ' if task.gradient else ''}message{message.number}"
    at = at_text(task.at, stage.functions[message.producer].time) if task.at else ""
    return f"{_direction(role, source, target)} {what}{at}"


def _direction(role: Role, source: Submesh, target: Submesh) -> str:
    ends: Iterable[str] = (w for w, s in (("send", source), ("receive", target)) if role.is_in(s))
    return " and ".join(ends)
