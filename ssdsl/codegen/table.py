"""The table that gives each rank its role, groups, weights and messages: `program.json`."""

from typing import Any, assert_never

from ssdsl.ir.comm import Message, Move, Signal
from ssdsl.ir.layout import Shape, Shard, Submesh, cut
from ssdsl.ir.param import (
    AllReduceGrads,
    ChunkGrads,
    Completion,
    FlatParam,
    Param,
    ReduceScatterGrads,
    SumTiedGrads,
)
from ssdsl.ir.program import Program, Role
from ssdsl.model.graph import Origin

Groups = dict[tuple[str, tuple[str, ...]], None]


def program_table(program: Program, groups: Groups) -> dict[str, Any]:
    """Everything about the program that is data. `groups` are the process groups that the roles' code uses."""
    graph, plan = program.graph, program.plan
    wanted = dict(groups)
    roles = [_role(program, r, wanted) for r in program.roles if r.actions]
    loss = program.functions[program.loss.function]
    return {
        "model": graph.name,
        "world_size": plan.devices,
        "params": plan.params,
        "meshes": [{"name": m.name, "axes": dict(m.axes), "first": m.first} for m in plan.meshes],
        "groups": [{"mesh": mesh, "axes": list(axes)} for mesh, axes in wanted],
        "loss": {
            "mesh": loss.submesh.mesh.name,
            "fixed": dict(loss.submesh.fixed),
            "axes": list(program.loss.axes),
        },
        "inputs": {v.name: {"shape": list(v.shape), "dtype": v.dtype} for v in graph.of(Origin.INPUT)},
        "constants": [v.name for v in graph.of(Origin.CONSTANT)],
        "seed": [v.name for v in graph.of(Origin.SEED)],
        "ties": _ties(program),
        "roles": roles,
        "messages": [_message(m) for m in program.messages],
    }


# -- weights -----------------------------------------------------------------------------------------------------------


def _role(program: Program, role: Role, wanted: Groups) -> dict[str, Any]:
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
        "inputs": [{"name": v.name, "shape": list(v.shape), "takes": []} for v in program.graph.of(Origin.INPUT)],
        "flats": [_flat(f, params) for f in flats],
        "others": [_param(p) for key, p in params.items() if key not in trained],
    }


def _axes_of(step: Completion) -> tuple[str, ...]:
    return () if isinstance(step, SumTiedGrads) else step.axes


def _flat(flat: FlatParam, params: dict[tuple[str, Submesh], Param]) -> dict[str, Any]:
    return {
        "number": flat.number,
        "weights": [_param(params[w, flat.submesh]) for w in flat.weights],
        "zero": flat.zero.value,
        "shard_axes": list(flat.shard_axes),
        "elements": flat.elements,
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
    """A weight with the takes that lead from the whole tensor to the local one: [axis, dim, outer, count]."""
    takes = []
    done: list[Shard] = []
    for (axis, _), place in zip(param.submesh.axes, param.layout.places, strict=True):
        if isinstance(place, Shard):
            where = cut(param.shape, place, tuple(done))
            takes.append([axis, where.dim, where.outer, where.count])
            done.append(place)
    return {"name": param.weight, "shape": list(param.shape.sizes), "takes": takes}


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


# -- messages ----------------------------------------------------------------------------------------------------------


def _message(message: Message) -> dict[str, Any]:
    common = {
        "number": message.number,
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
