"""The table that gives each rank its role, groups, weights, transfers and order of tasks: `program.json`."""

from typing import Any

from ssdsl.codegen.block_table import input_slot
from ssdsl.lower.layout import Digit, Shape, Submesh, cut
from ssdsl.lower.schedule import LETTERS, Home, Move, Role, Schedule, Task, Transfer
from ssdsl.lower.units import units_of
from ssdsl.model.graph import Origin, Value


def program_table(schedule: Schedule, groups: list[tuple[str, tuple[str, ...]]]) -> dict[str, Any]:
    """Everything about the program that is data. `groups` are the process groups that the roles' code uses."""
    graph = schedule.graph
    roles = [_role(schedule, r) for r in schedule.roles if r.tasks]
    wanted = dict.fromkeys([*groups, *_unit_groups(roles)])
    loss = next(b for b in schedule.blocks if any(o.value == graph.loss for o in b.outputs))
    if schedule.loss_partial:
        wanted[loss.submesh.mesh.name, schedule.loss_partial] = None
    return {
        "model": graph.name,
        "world_size": schedule.plan.devices,
        "params": schedule.plan.params,
        "meshes": [{"name": m.name, "axes": dict(m.axes), "first": m.first} for m in schedule.plan.meshes],
        "groups": [{"mesh": mesh, "axes": list(axes)} for mesh, axes in wanted],
        "loss": {
            "mesh": loss.submesh.mesh.name,
            "fixed": dict(loss.submesh.fixed),
            "axes": list(schedule.loss_partial),
        },
        "constants": [v.name for v in graph.of(Origin.CONSTANT)],
        "ties": _ties(schedule),
        "roles": roles,
        "transfers": [_transfer(schedule, t) for t in schedule.transfers],
    }


def _role(schedule: Schedule, role: Role) -> dict[str, Any]:
    units = units_of(schedule, role)
    trained = {h.weight for u in units for h in u.homes}
    others = [h for h in schedule.homes if role.is_in(h.submesh) and h.weight not in trained]
    return {
        "name": role.name,
        "mesh": role.mesh,
        "fixed": dict(role.fixed),
        "tasks": [_task(t) for t in role.tasks],
        "units": [
            {
                "weights": [_home(schedule, h) for h in u.homes],
                "partial": list(u.partial),
                "cut": u.cut,
                "over": list(u.over),
                "tied": u.tied,
            }
            for u in units
        ],
        "others": [_home(schedule, h) for h in others],
    }


def _task(task: Task) -> str:
    """`F3[0]`, `B3[0]`: a block forward and backward (`D3[0]`, `W3[0]` its halves); `f1[0]`, `b1[0]`: a transfer, of a
    gradient."""
    letter, number = LETTERS[task.phase], task.block
    if task.transfer is not None:
        letter, number = letter.lower(), task.transfer
    return f"{letter}{number}{list(task.coordinate)}"


def _home(schedule: Schedule, home: Home) -> dict[str, Any]:
    """A weight with the takes that lead from the whole tensor to the local one: [axis of the mesh, dim, outer,
    count]."""
    takes = []
    done: list[Digit] = []
    for (axis, _), place in zip(home.submesh.axes, home.layout.places, strict=True):
        if isinstance(place, Digit):
            where = cut(home.shape, place, tuple(done))
            takes.append([axis, where.dim, where.outer, where.count])
            done.append(place)
    value = schedule.graph.values[home.weight]
    return {"name": home.weight, "shape": list(value.shape), "takes": takes}


def _unit_groups(roles: list[dict[str, Any]]) -> list[tuple[str, tuple[str, ...]]]:
    found = []
    for role in roles:
        for unit in role["units"]:
            partial, over = unit["partial"], unit["over"]
            rest = [a for a in partial if a not in over]
            found += [(role["mesh"], tuple(axes)) for axes in (partial, over, rest) if axes]
    return found


def _ties(schedule: Schedule) -> dict[str, list[dict[str, Any]]]:
    """Weights that live on several submeshes: their gradients are summed over all of them."""
    homes: dict[str, list[Submesh]] = {}
    for home in schedule.homes:
        homes.setdefault(home.weight, []).append(home.submesh)
    return {
        weight: [{"mesh": s.mesh.name, "fixed": dict(s.fixed), "axes": [a for a, _ in s.axes]} for s in submeshes]
        for weight, submeshes in homes.items()
        if len(submeshes) > 1 and _learns(schedule.graph.values[weight])
    }


def _learns(value: Value) -> bool:
    return value.origin is Origin.WEIGHT and value.differentiable


def _transfer(schedule: Schedule, transfer: Transfer) -> dict[str, Any]:
    producer, consumer = schedule.blocks[transfer.producer], schedule.blocks[transfer.consumer]
    names = {o.sent: o.name for o in producer.outputs if o.value == transfer.value}
    backward = transfer.backward if consumer.has_backward and producer.has_backward else None
    return {
        "number": transfer.number,
        "value": transfer.value,
        "source_slot": names.get(True, names.get(False, "")),
        "target_slot": input_slot(schedule, consumer, transfer.value, producer.number) if transfer.value else "",
        "source": _place(transfer.source),
        "target": _place(transfer.target),
        "forward": _move(transfer.forward),
        "backward": _move(backward) if backward else None,
        "dtype": transfer.dtype,
        "time": [t.name for t in transfer.time],
        "uneven": _uneven(schedule, transfer),
    }


def _place(submesh: Submesh) -> dict[str, Any]:
    return {"mesh": submesh.mesh.name, "fixed": dict(submesh.fixed), "axes": [a for a, _ in submesh.axes]}


def _move(move: Move) -> dict[str, Any]:
    return {
        "aligned": list(move.aligned),
        "pieces": [[p.source, p.target, p.source_box, p.target_box] for p in move.pieces],
        "source_shape": _axes(move.source_shape),
        "target_shape": _axes(move.target_shape),
    }


def _axes(shape: Shape) -> list[list[int]]:
    return [list(axis) for axis in shape.axes]


def _uneven(schedule: Schedule, transfer: Transfer) -> dict[str, Any]:
    """Factors whose size varies with an index in time: {factor: [index, sizes]}."""
    sizes = {t.name: t.sizes for t in transfer.time if t.sizes}
    if not sizes:
        return {}
    producer = next(o for o in schedule.graph.operators if any(x.value == transfer.value for x in o.outputs))
    output = next(x for x in producer.outputs if x.value == transfer.value)
    factors = [d for axis in output.axes for d in axis]
    return {
        str(factors.index(c.dim)): [c.index, list(sizes[c.index] or ())]
        for c in schedule.cuts[producer.name]
        if c.index in sizes and c.dim in factors
    }
