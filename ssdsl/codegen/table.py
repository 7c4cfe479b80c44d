"""The table that gives each rank its role, groups, weights and messages: `program.json`."""

from typing import Any, assert_never

from ssdsl.codegen.sites import Origins, Place
from ssdsl.ir.comm import Message, Move, Signal
from ssdsl.ir.function import Instr
from ssdsl.ir.layout import Layout, Shape, Shard, Submesh, cut
from ssdsl.ir.param import (
    AllReduceGrads,
    ChunkGrads,
    Completion,
    FlatParam,
    Param,
    ReduceScatterGrads,
    SumTiedGrads,
)
from ssdsl.ir.program import Program, Result, Role
from ssdsl.model.graph import Graph, Origin, Value
from ssdsl.model.sparse import sparse_weights
from ssdsl.runtime.version import VERSION

Groups = dict[tuple[str, tuple[str, ...]], None]
SitesOf = dict[str, dict[Place, Instr]]  # by role


def program_table(program: Program, groups: Groups, sites: SitesOf) -> dict[str, Any]:
    """Everything about the program that is data. `groups` are the process groups that the roles' code uses, `waits` the
    places of each role's code at which ranks wait for each other."""
    graph, plan, origins = program.graph, program.plan, Origins(program)
    wanted = dict(groups)
    roles = [_role(program, r, wanted, origins, sites[r.name]) for r in program.roles if r.actions]
    loss = program.functions[program.loss.function]
    return {
        "version": VERSION,
        "model": graph.name,
        "world_size": plan.devices,
        "params": plan.params,
        "flops": graph.step_flops,
        "meshes": [{"name": m.name, "axes": dict(m.axes), "first": m.first} for m in plan.meshes],
        "groups": [{"mesh": mesh, "axes": list(axes)} for mesh, axes in wanted],
        "loss": {
            "mesh": loss.submesh.mesh.name,
            "fixed": dict(loss.submesh.fixed),
            "axes": list(program.loss.axes),
        },
        "inputs": {v.name: _input(v, graph) for v in graph.of(Origin.INPUT)},
        "constants": {v.name: v.dtype for v in graph.of(Origin.CONSTANT)},
        "seed": [v.name for v in graph.of(Origin.SEED)],
        "outputs": [_result(program, r) for r in program.results],
        "trains": program.trains,
        "ties": _ties(program),
        "sparse": list(sparse_weights(graph)),
        "roles": roles,
        "messages": [_message(m, origins) for m in program.messages],
    }


# -- weights -----------------------------------------------------------------------------------------------------------


def _role(program: Program, role: Role, wanted: Groups, origins: Origins, sites: dict[Place, Instr]) -> dict[str, Any]:
    mesh = role.submesh.mesh.name
    params = {(p.weight, p.submesh): p for p in program.params_of(role)}
    flats = program.flats_of(role)
    trained = {(w, f.submesh) for f in flats for w in f.weights}
    for flat in flats:
        for axes in [flat.shard_axes, *(a for step in flat.completion if (a := _axes_of(step)))]:
            if axes:
                wanted[mesh, axes] = None
    return {
        "name": role.name,
        "mesh": mesh,
        "fixed": dict(role.submesh.fixed),
        "inputs": _inputs_of(program, role),
        "flats": [{**_flat(f, params), "plan": origins.flat(f)} for f in flats],
        "others": [_param(p) for key, p in params.items() if key not in trained],
        "sites": origins.table(sites),
    }


def _axes_of(step: Completion) -> tuple[str, ...]:
    return () if isinstance(step, SumTiedGrads) else step.axes


def _flat(flat: FlatParam, params: dict[tuple[str, Submesh], Param]) -> dict[str, Any]:
    return {
        "number": flat.number,
        "weights": [_param(params[w, flat.submesh]) for w in flat.weights],
        "zero": flat.zero.value,
        "shard_axes": list(flat.shard_axes),
        "completion": [_completion(step) for step in flat.completion],
    }


def _completion(step: Completion) -> list[Any]:
    """A step as [what, axes of the mesh]."""
    match step:
        case AllReduceGrads():
            return ["all_reduce", list(step.axes)]
        case ReduceScatterGrads():
            return ["reduce_scatter", list(step.axes)]
        case ChunkGrads():
            return ["chunk", list(step.axes)]
        case SumTiedGrads():
            return ["sum_tied", []]
        case _:
            assert_never(step)


def _param(param: Param) -> dict[str, Any]:
    return _part(param.weight, param.shape, param.layout, param.submesh)


def _part(name: str, shape: Shape, layout: Layout, submesh: Submesh) -> dict[str, Any]:
    """A tensor with the takes that lead from the whole one to the local one: [axis, dim, outer, count], or the regions
    of the parts in place of their count."""
    takes: list[list[Any]] = []
    done: list[Shard] = []
    places = zip(submesh.axes, layout.places, strict=True)
    digits = [(axis, place) for (axis, _), place in places if isinstance(place, Shard)]
    for axis, place in sorted(digits, key=lambda digit: digit[1].at is not None):  # unequal parts cut what is left
        where = cut(shape, place, tuple(done))
        takes.append([axis, where.dim, where.outer, where.at or where.count])
        done.append(place)
    return {"name": name, "shape": list(shape.sizes), "takes": takes}


def _ties(program: Program) -> dict[str, list[dict[str, Any]]]:
    """Weights that live on several submeshes: their gradients are summed over all of them."""
    tied = {
        w: step.submeshes
        for f in program.flats
        for step in f.completion
        if isinstance(step, SumTiedGrads)
        for w in f.weights
    }
    return {w: [_place(s) for s in submeshes] for w, submeshes in tied.items()}


# -- inputs ------------------------------------------------------------------------------------------------------------


def _input(value: Value, graph: Graph) -> dict[str, Any]:
    """A tensor of the batch, whole, with the names that the model gives its axes."""
    return {"shape": list(value.shape), "dtype": value.dtype, "axes": list(graph.axes.get(value.name, ()))}


def _inputs_of(program: Program, role: Role) -> list[dict[str, Any]]:
    """The part of each input that a role's prologues begin with; they agree."""
    found = {
        var.name.value: _part(var.name.value, Shape(value.sizes), var.type.layout, prologue.submesh)
        for prologue in program.prologues_of(role)
        for var in prologue.given
        if (value := program.graph.values[var.name.value]).origin is Origin.INPUT
    }
    return [found[v.name] for v in program.graph.of(Origin.INPUT) if v.name in found]


# -- outputs -----------------------------------------------------------------------------------------------------------


def _result(program: Program, result: Result) -> dict[str, Any]:
    """A tensor that was asked for, with the devices that keep it, and the part of the whole that each keeps for each
    coordinate in time: takes of [axis or index in time, dim, outer, count, or the regions of unequal parts]. Over the
    indices in `sums` the parts are addends."""
    function = program.functions[result.function]
    value, var = program.graph.values[result.value.value], function.variables()[result.value]
    shape, submesh = Shape(value.sizes), function.submesh
    places = zip(submesh.axes, var.type.layout.places, strict=True)
    digits = [(axis, place) for (axis, _), place in places if isinstance(place, Shard)]
    digits = sorted([*digits, *var.type.time], key=lambda digit: digit[1].at is not None)  # they cut what is left
    takes: list[list[Any]] = []
    for number, (name, digit) in enumerate(digits):
        where = cut(shape, digit, tuple(d for _, d in digits[:number]))
        takes.append([name, where.dim, where.outer, where.at or where.count])
    return {
        "name": result.name,
        "dtype": value.dtype,
        "shape": list(shape.sizes),
        "mesh": submesh.mesh.name,
        "fixed": dict(submesh.fixed),
        "slot": result.slot,
        "time": {t.name: t.parts for t in function.time},
        "takes": takes,
        "sums": list(var.type.owed),
    }


# -- messages ----------------------------------------------------------------------------------------------------------


def _message(message: Message, origins: Origins) -> dict[str, Any]:
    common = {
        "number": message.number,
        "lane": message.lane,
        "plan": origins.message(origins.program.functions[message.consumer]),
        "source": _place(message.source),
        "target": _place(message.target),
        "forward": _move(message.forward),
    }
    if isinstance(message, Signal):
        return {**common, "signal": True}
    return {
        **common,
        "value": message.value,
        "source_slot": message.source_slot,
        "target_slot": message.target_slot,
        "backward": _move(message.backward) if message.backward else None,
        "dtype": message.dtype,
        "time": [t.name for t in message.time],
        "uneven": {str(factor): [t.name, list(t.sizes or ())] for factor, t in message.uneven},
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
