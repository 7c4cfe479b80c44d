"""`ssdsl check`: a plan in numbers, short of running it: devices, tasks, repeated work, memory of the state."""

import math
from typing import Any

from ssdsl.compile import Compiled
from ssdsl.lower.schedule import Home, Role, Schedule
from ssdsl.model.graph import Operator, Stage
from ssdsl.plan.plan import Plan
from ssdsl.show.communication import communication_view
from ssdsl.show.view import Column, Kind, View, as_json

ADAMW_STATES = 2


def check_views(compiled: Compiled) -> tuple[View, ...]:
    """The tables of a plan that is right."""
    return meshes_view(compiled.plan), roles_view(compiled.schedule), repeated_view(compiled.plan)


def check_json(compiled: Compiled) -> dict[str, Any]:
    """The same as JSON, with the communication and the warnings."""
    schedule = compiled.schedule
    views = {
        "meshes": meshes_view(compiled.plan),
        "roles": roles_view(schedule),
        "repeated": repeated_view(compiled.plan),
    }
    return {
        "model": compiled.plan.graph.name,
        "devices": compiled.plan.devices,
        "params": compiled.plan.params,
        **{name: as_json(view) for name, view in views.items()},
        "communication": as_json(communication_view(schedule)),
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


def roles_view(schedule: Schedule) -> View:
    """What each role computes and keeps; memory is that of its state, without activations."""
    columns = (
        Column("role", style="bold cyan"),
        Column("devices", Kind.COUNT),
        Column("tasks", Kind.COUNT),
        Column("work", Kind.SHARE),
        Column("weights", Kind.BYTES),
        Column("gradients", Kind.BYTES),
        Column("AdamW", Kind.BYTES),
    )
    note = "per device, without activations (`show memory` has them); work: the role's share of the multiplications"
    return View("roles", columns, tuple(_role(schedule, r) for r in schedule.roles if r.tasks), (note,))


def _role(schedule: Schedule, role: Role) -> tuple[str | int | float, ...]:
    mesh = next(m for m in schedule.plan.meshes if m.name == role.mesh)
    held = dict(role.fixed)
    axes = dict(mesh.axes)
    devices = math.prod(n for a, n in mesh.axes if a not in held)
    blocks = {t.block for t in role.tasks if t.transfer is None}
    flops = {o.name: o.flops for o in schedule.graph.operators}
    mine = sum(flops[name] for b in schedule.blocks if b.number in blocks for name in b.operators)
    homes = [h for h in schedule.homes if h.submesh.mesh is mesh and dict(h.submesh.fixed).items() <= held.items()]
    state = [sum(_state_bytes(schedule, h, axes, overs) for h in homes) for overs in (1, 2, 3)]
    return role.name, devices, len(role.tasks), mine / max(1, sum(flops.values())), state[0], state[1], 2 * state[2]


def _state_bytes(schedule: Schedule, home: Home, axes: dict[str, int], kinds: int) -> float:
    """Bytes of a device's part: of the weight (kinds = 1), its gradient (2), or one state of its optimizer (3)."""
    value = schedule.graph.values[home.weight]
    if kinds > 1 and not value.differentiable:
        return 0.0
    cuts = (home.weights_over, home.grads_over, home.optimizer_over)[:kinds]
    over = math.prod(axes[axis] for axis in dict.fromkeys(a for cut in cuts for a in cut))
    return home.shape.local(home.layout.digits()).numel * value.itemsize / over


def repeated_view(plan: Plan) -> View:
    """Work that several devices do alike, because an operator has no index for an axis of its mesh."""
    columns = (
        Column("axis", style="bold cyan"),
        Column("devices", Kind.COUNT),
        Column("operators not split along it", Kind.COUNT),
        Column("of all work", Kind.SHARE),
        Column("most of it in", Kind.PATH),
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
