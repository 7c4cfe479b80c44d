"""`ssdsl check`: a plan in numbers, short of running it: devices, tasks, repeated work, memory of the state."""

import math
from typing import Any

from ssdsl.compile import Compiled
from ssdsl.ir.action import Compute, Start
from ssdsl.ir.param import FlatParam, Zero
from ssdsl.ir.program import Program, Role
from ssdsl.model.graph import ITEMSIZE, Operator, Stage
from ssdsl.plan.plan import Plan
from ssdsl.show.communication import communication_view
from ssdsl.show.view import Column, Kind, View, as_json

ADAMW_STATES = 2


def check_views(compiled: Compiled) -> tuple[View, ...]:
    """The tables of a plan that is right."""
    return meshes_view(compiled.plan), roles_view(compiled.program), repeated_view(compiled.plan)


def check_json(compiled: Compiled) -> dict[str, Any]:
    """The same as JSON, with the communication and the warnings."""
    program = compiled.program
    views = {
        "meshes": meshes_view(compiled.plan),
        "roles": roles_view(program),
        "repeated": repeated_view(compiled.plan),
    }
    return {
        "model": compiled.plan.graph.name,
        "devices": compiled.plan.devices,
        "params": compiled.plan.params,
        **{name: as_json(view) for name, view in views.items()},
        "communication": as_json(communication_view(program)),
        "warnings": [{"code": d.code, "title": d.text(d.title)} for d in compiled.warnings],
    }


def meshes_view(plan: Plan) -> View:
    """The meshes with their axes, and the values of the parameters."""
    columns = (Column("mesh", style="bold cyan"), Column("axes", style="green"), Column("devices", Kind.COUNT))
    rows = tuple(
        (m.name, " ".join(f"{a}={n}" for a, n in m.axes), math.prod(n for _, n in m.axes)) for m in plan.meshes
    )
    params = " ".join(f"{name}={value}" for name, value in plan.params.items())
    return View(f"{plan.graph.name} on {plan.devices} devices", columns, rows, (f"params: {params}",) if params else ())


def roles_view(program: Program) -> View:
    """What each role computes and keeps; memory is that of its state, without activations."""
    columns = (
        Column("role", style="bold cyan"),
        Column("devices", Kind.COUNT),
        Column("tasks", Kind.COUNT),
        Column("work", Kind.SHARE),
        Column("weights", Kind.BYTES),
        Column("gradients", Kind.BYTES),
        Column("AdamW", Kind.BYTES, key="optimizer"),
    )
    note = "per device, without activations (`show memory` has them); work: the role's share of the multiplications"
    return View("roles", columns, tuple(_role(program, r) for r in program.roles if r.actions), (note,))


def _role(program: Program, role: Role) -> tuple[str | int | float, ...]:
    flops = {o.name: o.flops for o in program.graph.operators}
    functions = {c.function for c in role.computes()}
    mine = sum(flops[op.operator] for n in sorted(functions) for op in program.functions[n].operators())
    tasks = sum(isinstance(action, Compute | Start) for action in role.actions)
    return role.name, role.submesh.size, tasks, mine / max(1, sum(flops.values())), *_state(program, role)


def _state(program: Program, role: Role) -> tuple[int, int, int]:
    """Bytes that a device holds of weights and buffers, of gradients, and of the optimizer's two states."""
    flats = program.flats_of(role)
    fixed = [p for p in program.params_of(role) if not p.trained]
    weights = sum(p.elements * ITEMSIZE.get(p.dtype, 4) for p in fixed)
    weights += sum(_held(f, Zero.WEIGHTS) for f in flats)
    gradients = sum(_held(f, Zero.WEIGHTS, Zero.GRADS) for f in flats)
    return weights, gradients, ADAMW_STATES * sum(_held(f, Zero.WEIGHTS, Zero.GRADS, Zero.OPTIMIZER) for f in flats)


def _held(flat: FlatParam, *shards: Zero) -> int:
    """Bytes of a device's part, where stages of ZeRO shard it."""
    axes = dict(flat.submesh.axes)
    ways = math.prod(axes[a] for a in flat.shard_axes) if flat.zero in shards else 1
    return flat.elements * ITEMSIZE.get(flat.dtype, 4) // ways


def repeated_view(plan: Plan) -> View:
    """Work that several devices do alike, because an operator has no index for an axis of its mesh."""
    columns = (
        Column("axis", style="bold cyan"),
        Column("devices", Kind.COUNT),
        Column("operators not split along it", Kind.COUNT, key="operators"),
        Column("of all work", Kind.SHARE, key="share"),
        Column("most of it in", Kind.PATH, key="most_in", drop=1),
    )
    total = max(1, sum(o.flops for o in plan.graph.operators))
    rows = tuple(
        row
        for mesh in plan.meshes
        for axis, n in mesh.axes
        if n > 1
        for row in _repeated(plan, mesh.name, axis, n, total)
    )
    note = "each of these operators is computed by every device along the axis" if rows else "no work is repeated"
    return View("repeated work", columns, rows, (note,))


def _repeated(plan: Plan, mesh: str, axis: str, count: int, total: int) -> list[tuple[str | int | float, ...]]:
    found = [o for o in plan.graph.operators if _is_repeated(plan, o, mesh, axis)]
    if not found:
        return []
    work = sum(o.flops for o in found)
    most = max(found, key=lambda o: o.flops)
    return [(f"{mesh}.{axis}", count, len(found), work / total, f"{most.path} {most.kind}".strip())]


def _is_repeated(plan: Plan, operator: Operator, mesh: str, axis: str) -> bool:
    placement = plan.placements.get(operator.name)
    if operator.stage is not Stage.COMPUTE or placement is None or placement.mesh != mesh:
        return False
    names = {i.name for i in plan.indices.get(operator.name, ())} | {a for a, _ in placement.fixed}
    return axis not in names
