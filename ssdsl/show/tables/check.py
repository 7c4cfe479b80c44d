"""`ssdsl check`: a plan in numbers, without running it: devices, tasks, repeated work, memory of the state."""

import math
from collections import Counter
from typing import Any

from ssdsl.analyse.state import MIXED
from ssdsl.analyse.work import role_share
from ssdsl.ir.function import names_along
from ssdsl.ir.program import Compute, Program, Role, Start
from ssdsl.lang.suggest import joined
from ssdsl.model.alter.compress import code_of
from ssdsl.model.alter.recast import CAST
from ssdsl.model.graph import Operator
from ssdsl.plan.paths import starred, starred_module
from ssdsl.plan.plan import DividedAxis, Plan
from ssdsl.record import replace
from ssdsl.show.errors import RepeatedWork
from ssdsl.show.pattern import merged
from ssdsl.show.tables.communication import communication_view
from ssdsl.show.view import Column, ColumnKind, View, as_json, with_root
from ssdsl.simulate.memory.memory import state_of
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.workspace import Compiled

MOSTLY = 0.5  # of the work: a warning


def check_views(compiled: Compiled) -> tuple[View, ...]:
    """The tables about a compiled plan."""
    program = compiled.program
    plan = compiled.plan
    stated = [view for view in (splits_view(plan), types_view(plan), compressed_view(plan)) if view.rows]
    return meshes_view(plan), *stated, _roles(compiled), repeated_view(program), *_if_any(whole_view(program))


def _if_any(view: View) -> tuple[View, ...]:
    return (view,) if view.rows else ()


def _roles(compiled: Compiled) -> View:
    """The roles, with notes on the operators that the compiler left whole although the plan splits them in time."""
    view, late = roles_view(compiled.program), compiled.program.plan
    found: dict[str, list[Operator]] = {}
    for operator in compiled.plan.graph.operators:
        left = {index.name for index in late.of(operator.name).indices}
        for index in compiled.plan.of(operator.name).indices:
            if index.name not in left:
                found.setdefault(index.name, []).append(operator)
    notes = (
        f"{len(those)} operators of the loss run once, on all parts of `{name}`: they wait for "
        f"`{those[0].kind}`, which needs them together ({those[0].source})"
        for name, those in found.items()
    )
    return replace(view, notes=(*view.notes, *notes))


def check_json(compiled: Compiled, waits: View | None = None) -> dict[str, Any]:
    """The JSON of `ssdsl check`: the rows of these tables, the communication and the warnings; `waits`, if a step was
    run without a GPU. docs/json.md lists the keys."""
    program = compiled.program
    views = {
        "meshes": meshes_view(compiled.plan),
        "splits": splits_view(compiled.plan),
        "precision": types_view(compiled.plan),
        "compressed": compressed_view(compiled.plan),
        "roles": _roles(compiled),
        "repeated": repeated_view(program),
        "whole": whole_view(program),
        **({"waits": waits} if waits is not None else {}),
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
    columns = (Column("mesh", style="bold cyan"), Column("axes", style="green"), Column("devices", ColumnKind.COUNT))
    rows = tuple(
        (m.name, " ".join(f"{a}={n}" for a, n in m.axes), math.prod(n for _, n in m.axes)) for m in plan.meshes
    )
    params = " ".join(f"{name}={value}" for name, value in plan.params.items())
    notes = (f"params: {params}",) if params else ()
    return View(f"{plan.graph.name} on {plan.devices} devices", columns, rows, (*notes, *map(_divided, plan.divided)))


def _divided(axis: DividedAxis) -> str:
    axes = joined([f"`{name}` = {size}" for name, size in axis.axes], "and")
    why = f"some dimensions have fewer positions than `{axis.name}` has devices"
    return f"`{axis.name}` = {axis.size} of {axis.mesh} is {axes}: {why}"


def splits_view(plan: Plan) -> View:
    """A row for each index, number of parts and dimension, with whether the parts run over devices or in time."""
    columns = (
        Column("index", style="bold cyan"),
        Column("parts", ColumnKind.COUNT),
        Column("run", style="green"),
        Column("split", ColumnKind.PATH, key="dimension"),
        Column("operators", ColumnKind.COUNT),
    )
    operators = plan.graph.by_name
    axes = {m.name: dict(m.axes) for m in plan.meshes}
    found: Counter[tuple[str, int, str, str]] = Counter()
    placed = ((name, record, record.place) for name, record in plan.operators.items() if record.place is not None)
    for name, record, place in placed:
        dims = operators[name].dims
        for index in record.indices:
            run = f"over {place.mesh}" if index.name in axes[place.mesh] else "in time"
            found[index.name, index.digit.parts, run, starred(dims[index.dim].name)] += 1
    rows = tuple((*key, count) for key, count in found.items())
    parts = Counter((str(run), run.count, "by name", "") for record in plan.operators.values() for run in record.parts)
    rows += tuple((*key, count) for key, count in parts.items())
    note = "over a mesh: each part on devices of its own; in time: one after another on each device"
    if parts:
        note += "; by name: as the plan says of these parts"
    return View("splits", columns, rows, (note,))


OTHER_MODEL = "this plan trains another model"


def types_view(plan: Plan) -> View:
    """A row for each type that the plan gives operators, with how many these are and how many tensors are cast to it;
    one without operators for what is cast back."""
    columns = (Column("type", style="bold cyan"), *(Column(name, ColumnKind.COUNT) for name in ("operators", "casts")))
    if plan.altered is None:
        return View("precision", columns, ())
    operators = Counter(plan.altered.types.values())
    casts = Counter(plan.graph.values[o.outputs[0].value].dtype for o in plan.altered.added if o.target == CAST)
    rows = tuple((dtype, operators[dtype], casts[dtype]) for dtype in {**operators, **casts})
    return View(
        "precision", columns, rows, (f"one device computes in these types, too: {OTHER_MODEL}",) if rows else ()
    )


def compressed_view(plan: Plan) -> View:
    """A row for what each kind of operator makes that is compressed, with the bits that a number of it has on its
    way."""
    columns = (
        Column("compressed", ColumnKind.PATH),
        Column("along", ColumnKind.PATH, style="green"),
        Column("of", ColumnKind.COUNT, key="size"),
        Column("kept", ColumnKind.COUNT),
        Column("bits a number", ColumnKind.COUNT, key="bits"),
        Column("results", ColumnKind.COUNT),
    )
    found: Counter[tuple[str, str, int, int, float]] = Counter()
    for operator in plan.graph.operators if plan.altered is not None else ():
        if (code := code_of(operator, plan.graph)) is not None:
            made = f"{starred(operator.path)} {plan.graph.makers[operator.inputs[0].value].kind}".strip()
            found[made, starred(code.dim.name), code.dim.size, code.kept, code.bits] += 1
    rows = tuple((*row, count) for row, count in found.items())
    notes = (f"one device compresses it, too, and gradients that come back: {OTHER_MODEL}",)
    return View("compressed", columns, rows, notes if rows else ())


def roles_view(program: Program) -> View:
    """The work of each role, and the memory of its state, without activations."""
    columns = (
        Column("role", style="bold cyan"),
        Column("devices", ColumnKind.COUNT),
        Column("tasks", ColumnKind.COUNT),
        Column("work", ColumnKind.SHARE),
        Column("weights", ColumnKind.BYTES),
        Column("gradients", ColumnKind.BYTES),
        Column("AdamW", ColumnKind.BYTES, key="optimizer"),
    )
    note = "per device, without activations (`show memory` has them); work: the role's share of the multiplications"
    return View("roles", columns, tuple(_role(program, r) for r in program.roles if r.actions), (note,))


def _role(program: Program, role: Role) -> tuple[str | int | float, ...]:
    tasks = sum(isinstance(action, Compute | Start) for action in role.actions)
    return role.name, role.submesh.size, tasks, role_share(program, role), *_state(program, role)


def _state(program: Program, role: Role) -> tuple[int, int, int]:
    """The bytes per device of weights and buffers; of gradients; of master copies and AdamW's moments."""
    learned = dict.fromkeys((w for flat in program.flats_of(role) for w in flat.weights), 0.0)
    sizes = Counter[str]()
    for _, size_bytes, part in state_of(program, MIXED, role, learned):
        sizes[part] += size_bytes
    return sizes["weights"], sizes["gradients"], sizes["optimizer"]


def repeated_view(program: Program) -> View:
    """The work that several devices repeat, because an operator is not split along an axis of its devices."""
    columns = (
        Column("axis", style="bold cyan"),
        Column("devices", ColumnKind.COUNT),
        Column("operators not split along it", ColumnKind.COUNT, key="operators"),
        Column("of all work", ColumnKind.SHARE, key="share"),
        Column("most of it in", ColumnKind.PATH, key="most_in", drop=1),
    )
    operators = program.graph.by_name
    total = max(1, sum(o.flops for o in operators.values()))
    found: dict[tuple[str, int], list[Operator]] = {
        (f"{m.name}.{axis}", n): [] for m in program.plan.meshes for axis, n in m.axes
    }
    for function in program.functions:
        for op in function.operators():
            split = names_along(op.splits)
            for axis, n in function.submesh.axes:
                if axis not in split:
                    found[f"{function.submesh.mesh.name}.{axis}", n].append(operators[op.operator])
    rows = tuple(_repeated(program.plan, axis, n, alike, total) for (axis, n), alike in found.items() if alike)
    note = "each of these operators is computed by every device along the axis" if rows else "no work is repeated"
    return View("repeated work", columns, rows, (note,))


def repeated_warnings(program: Program) -> tuple[Diagnostic, ...]:
    """A warning for each axis along which most of the work is repeated."""
    meshes = {m.name: m for m in program.plan.meshes}
    found = []
    for axis, devices, operators, share, most in repeated_view(program).rows:
        mesh, _, name = str(axis).rpartition(".")
        if float(share or 0) > MOSTLY:
            numbers = int(devices or 0), f"{float(share or 0):.0%}", int(operators or 0)
            found.append(RepeatedWork(meshes[mesh].span, name, *numbers, with_root(str(most))))
    return tuple(found)


def _repeated(plan: Plan, axis: str, count: int, alike: list[Operator], total: int) -> tuple[str | int | float, ...]:
    most = max(alike, key=lambda o: o.flops)
    return (
        axis,
        count,
        len(alike),
        sum(o.flops for o in alike) / total,
        f"{plan.of(most.name).module(most)} {most.kind}",
    )


def whole_view(program: Program) -> View:
    """The operators that need all of a dimension by which the plan splits others, so that its parts are joined
    first."""
    columns = (
        Column("operator", ColumnKind.PATH, "bold cyan"),
        Column("times", ColumnKind.COUNT),
        Column("needs all of", ColumnKind.PATH, key="dimension"),
        Column("which is split into", key="index"),
        Column("devices", ColumnKind.COUNT),
        Column("of all work", ColumnKind.SHARE, key="share"),
    )
    operators = program.graph.by_name
    total = max(1, sum(o.flops for o in operators.values()))
    found: dict[tuple[str, str, str, str, int], list[Operator]] = {}
    for function in program.functions:
        axes = dict(function.submesh.axes)
        for op in function.operators():
            split = names_along(op.splits)
            operator = operators[op.operator]
            record = program.plan.of(op.operator)
            for index in record.whole:
                if index.name not in split:
                    dim = starred(operator.dims[index.dim].name)
                    key = (
                        f"{starred_module(operator.module)} {operator.kind}",
                        record.selected,
                        dim,
                        index.name,
                        axes.get(index.name, 1),
                    )
                    found.setdefault(key, []).append(operator)
    rows = tuple(
        (_name(alike, parts), len(alike), dim, index, devices, sum(o.flops for o in alike) / total)
        for (_, parts, dim, index, devices), alike in found.items()
    )
    note = "every device computes all of it; on 1 device: once for all parts, when the last is there"
    return View("computed whole", columns, rows, (note,))


def _name(alike: list[Operator], parts: str) -> str:
    return f"{merged(o.module for o in alike)}{parts} {alike[0].kind}"
