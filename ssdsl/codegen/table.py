"""Makes the table that gives each rank its role, groups, weights and messages (ssdsl/runtime/program/table.py)."""

from collections.abc import Iterable
from functools import lru_cache

from ssdsl.codegen.origins import Origins
from ssdsl.codegen.scope import Common
from ssdsl.ir import comm, layout, param
from ssdsl.ir.layout import Layout, Shape, Shard, cut
from ssdsl.ir.program import Loss, Program, Result
from ssdsl.ir.program import Role as ProgramRole
from ssdsl.ir.value import Type, digits_of, names_of
from ssdsl.model.capture.sparse_gradients import sparse_weights
from ssdsl.model.graph import Origin
from ssdsl.model.products import step_flops
from ssdsl.runtime.layout.mesh import RankMesh
from ssdsl.runtime.program.table import (
    AxisTake,
    BatchInput,
    FlatEntry,
    HomeEntry,
    MeshAxes,
    MoveEntry,
    OperatorSite,
    Parcel,
    RequestedOutput,
    RoleEntry,
    SignalEntry,
    Steps,
    SubmeshEntry,
    Table,
    TensorEntry,
    TransferEntry,
)
from ssdsl.runtime.version import VERSION

Groups = dict[tuple[str, tuple[str, ...]], None]
OperatorsOf = dict[str, dict[int, OperatorSite]]  # by role, and line of its file


def _loss(program: Program, loss: Loss) -> SubmeshEntry:
    where = program.functions[loss.function].submesh
    return SubmeshEntry(where.mesh.name, dict(where.fixed), loss.axes)


def program_table(common: Common, groups: Groups, operators: OperatorsOf, precision: str | None = None) -> Table:
    """All data of the program. `groups` are the process groups that the roles' code uses, `operators` those in the
    lines of each role's code."""
    program, origins = common.program, common.origins
    graph, plan = program.graph, program.plan
    wanted = dict(groups)
    roles = tuple(_role(program, r, wanted, origins, operators[r.name]) for r in program.roles if r.actions)
    losses = {loss.function: _loss(program, loss) for loss in program.losses}
    return Table(
        version=VERSION,
        model=graph.name,
        world_size=plan.devices,
        params=plan.params,
        flops=round(sum(step_flops(graph, trains=program.trains).values())),
        meshes=tuple(RankMesh(m.name, dict(m.axes), m.first) for m in plan.meshes),
        groups=tuple(MeshAxes(mesh, axes) for mesh, axes in wanted),
        losses=losses,
        inputs={v.name: BatchInput(v.shape, v.dtype, graph.axes.get(v.name, ())) for v in graph.of(Origin.INPUT)},
        constants={v.name: v.dtype for v in graph.of(Origin.CONSTANT)},
        seed=tuple(v.name for v in graph.of(Origin.SEED)),
        outputs=tuple(_output(program, r) for r in program.results),
        returned=graph.returned,
        trains=program.trains,
        unreached=tuple(sorted(program.unreached)),
        ties=_ties(program),
        sparse=tuple(sparse_weights(graph)),
        roles=roles,
        messages=tuple(_message(m, origins) for m in program.messages),
        precision=precision,
    )


# -- weights -----------------------------------------------------------------------------------------------------------


def _role(
    program: Program, role: ProgramRole, wanted: Groups, origins: Origins, operators: dict[int, OperatorSite]
) -> RoleEntry:
    mesh = role.submesh.mesh.name
    params = {(p.weight, p.submesh): _tensor(p.weight, p.shape, p.layout, p.submesh) for p in program.params_of(role)}
    flats = program.flats_of(role)
    trained = {(w, f.submesh) for f in flats for w in f.weights}
    for flat in flats:
        kept = flat.kept.axes if flat.kept is not None else ()
        for axes in (*flat.sharded.levels, kept, *(_completion(step)[1] for step in flat.completion.steps)):
            if axes:
                wanted[mesh, axes] = None
    return RoleEntry(
        name=role.name,
        mesh=mesh,
        fixed=dict(role.submesh.fixed),
        inputs=_inputs_of(program, role),
        constants=tuple(c for c in _given_to(program, role, Origin.OPERATOR).values() if c.takes),
        flats=tuple(
            FlatEntry(
                number=f.number,
                weights=tuple(params[w, f.submesh] for w in f.weights),
                sharded=f.sharded.levels,
                completion=(
                    _steps(f.completion.in_backward),
                    _steps(f.completion.each),
                    _steps(f.completion.once),
                ),
                plan=origins.flat(f),
                ahead=f.ahead,
                homes=tuple(None if h is None else HomeEntry(h.axes, h.at) for h in f.homes),
                on_host=str(f.on_host or ""),
                kept=f.kept.axes if f.kept is not None else None,
                portions=f.sharded.portions,
            )
            for f in flats
        ),
        others=tuple(p for key, p in params.items() if key not in trained),
        operators=operators,
    )


def _steps(steps: Iterable[param.CompletionStep]) -> Steps:
    return tuple(map(_completion, steps))


def _completion(step: param.CompletionStep) -> tuple[str, tuple[str, ...]]:
    """The name of a completion's step, and the axes of the mesh that it runs over."""
    return step.kind, () if isinstance(step, param.SumTiedGrads) else step.axes


def _tensor(name: str, shape: Shape, where: Layout, submesh: layout.Submesh) -> TensorEntry:
    return TensorEntry(name, shape.sizes, _takes(shape, Type(where), submesh))


@lru_cache(maxsize=1024)  # most parameters of a program are cut as others are
def _takes(shape: Shape, type_: Type, submesh: layout.Submesh) -> tuple[AxisTake, ...]:
    """The slices that lead from a whole tensor to its local part, for the digits of axes and of indices in time."""
    takes: list[AxisTake] = []
    done: list[Shard] = []
    counts = dict(submesh.axes)
    # unequal parts last
    for coordinate, digit in sorted(digits_of(type_, submesh.axes), key=lambda digit: digit[1].digit.at is not None):
        where, names = cut(shape, digit, tuple(done)), names_of(coordinate)
        axis = names[0] if len(names) == 1 else tuple((name, counts[name]) for name in names)
        takes.append(AxisTake(axis, where.dim, where.outer, where.at or where.count))
        done.append(digit)
    return tuple(takes)


def _ties(program: Program) -> dict[str, tuple[SubmeshEntry, ...]]:
    """The submeshes of each tied weight that is on several: its gradients are summed over all of them."""
    return {w: tuple(map(_submesh, f.completion.tied)) for f in program.flats for w in f.weights if f.completion.tied}


# -- inputs and outputs ------------------------------------------------------------------------------------------------


def _inputs_of(program: Program, role: ProgramRole) -> tuple[TensorEntry, ...]:
    """The part of each input that a role's prologues begin with, in the order of the model."""
    found = _given_to(program, role, Origin.INPUT)
    return tuple(found[v.name] for v in program.graph.of(Origin.INPUT) if v.name in found)


def _given_to(program: Program, role: ProgramRole, origin: Origin) -> dict[str, TensorEntry]:
    """The parts of inputs or constants that a role's prologues begin with; all have the same."""
    return {
        var.name.value: _tensor(var.name.value, Shape(value.sizes), var.type.layout, prologue.submesh)
        for prologue in program.prologues_of(role)
        for var in prologue.given
        if (value := program.graph.values[var.name.value]).origin is origin
    }


def _output(program: Program, result: Result) -> RequestedOutput:
    """An output that was asked for, with the devices that keep it, and the part that each keeps."""
    function = program.functions[result.function]
    value, var = program.graph.values[result.value.value], function.variables()[result.value]
    shape, submesh = Shape(value.sizes), function.submesh
    return RequestedOutput(
        name=result.name,
        dtype=value.dtype,
        shape=shape.sizes,
        mesh=submesh.mesh.name,
        fixed=dict(submesh.fixed),
        slot=result.slot,
        time={t.name: t.parts for t in function.time},
        takes=_takes(shape, var.type, submesh),
        sums=var.type.owed,
    )


# -- messages ----------------------------------------------------------------------------------------------------------


def _message(message: comm.Message, origins: Origins) -> SignalEntry | TransferEntry:
    plan = origins.message(origins.program.functions[message.consumer])
    ends = _submesh(message.source), _submesh(message.target)
    common = message.number, message.lane, plan, *ends, _move(message.forward)
    if isinstance(message, comm.Signal):
        return SignalEntry(*common, signal=True)
    return TransferEntry(
        *common,
        value=message.value,
        source_slot=message.source_slot,
        target_slot=message.target_slot,
        backward=_move(message.backward) if message.backward else None,
        dtype=message.dtype,
        time=tuple(t.name for t in message.time),
        uneven={factor: (t.name, t.sizes or ()) for factor, t in message.uneven},
    )


def _submesh(submesh: layout.Submesh) -> SubmeshEntry:
    return SubmeshEntry(submesh.mesh.name, dict(submesh.fixed), tuple(a for a, _ in submesh.axes))


def _move(move: comm.Move) -> MoveEntry:
    pieces = tuple(Parcel(p.source, p.target, p.source_box, p.target_box) for p in move.pieces)
    return MoveEntry(move.aligned, pieces, move.source_shape.axes, move.target_shape.axes, move.broadcast)
