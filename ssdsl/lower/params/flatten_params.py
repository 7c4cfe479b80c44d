"""Lays trained weights end to end as flat parameters: what is reduced together, and whose state is sharded together."""

import itertools
from dataclasses import replace
from typing import NamedTuple

from ssdsl.ir.layout import Submesh
from ssdsl.ir.param import (
    AllReduceGrads,
    ChunkGrads,
    Completion,
    FlatParam,
    Param,
    ReduceScatterGrads,
    SumTiedGrads,
    Zero,
)
from ssdsl.lower.errors import ShardConflict
from ssdsl.lower.lowering import Lowering
from ssdsl.lower.resized_errors import GradientsApart
from ssdsl.model.graph import ITEMSIZE
from ssdsl.model.layers import layer_of, layer_paths
from ssdsl.plan.plan import Plan, State
from ssdsl.plan.plan import Shard as StateShard
from ssdsl.text.diagnostic import PlanError

BUCKET_BYTES = 25 << 20  # as PyTorch's DistributedDataParallel


class _Kind(NamedTuple):
    """What the weights of a flat parameter have in common. `where`: the module whose weights are gathered together."""

    submesh: Submesh
    partial: tuple[str, ...]
    zero: Zero
    shard_axes: tuple[str, ...]
    tied: tuple[Submesh, ...]
    where: str
    dtype: str


def flatten_params(lowering: Lowering) -> Lowering:
    """Adds the flat parameters, in the order in which backward completes their gradients (last layers first).

    Raises PlanError: state that cannot be sharded as the plan says.
    """
    if lowering.held.flats:
        return replace(lowering, flats=tuple(_completed(flat, lowering.params) for flat in lowering.held.flats))
    layers = layer_paths(lowering.graph)
    submeshes: dict[str, list[Submesh]] = {}
    for param in lowering.params:
        submeshes.setdefault(param.weight, []).append(param.submesh)
    _check_shards(lowering)
    sharded = _sharded(lowering.plan)
    groups: dict[_Kind, list[Param]] = {}
    stages = [_zero(param, sharded) for param in lowering.params]
    for param, (zero, axes) in zip(reversed(lowering.params), reversed(stages), strict=True):
        if not param.trained:
            continue
        tied = tuple(submeshes[param.weight]) if len(submeshes[param.weight]) > 1 else ()
        if len({s.axes for s in tied}) > 1:  # copies of unlike devices cannot sum their parts one by one
            zero, axes = Zero.NONE, ()
        where = ""
        if tied:
            where = param.weight
        elif zero is Zero.WEIGHTS:
            where = layer_of(param.weight, layers) or param.weight.rpartition(".")[0]
        groups.setdefault(_Kind(param.submesh, param.partial, zero, axes, tied, where, param.dtype), []).append(param)
    buckets = [(kind, bucket) for kind, params in groups.items() for bucket in _buckets(params)]
    return replace(lowering, flats=tuple(_flat(n, kind, bucket) for n, (kind, bucket) in enumerate(buckets)))


def _flat(number: int, kind: _Kind, params: list[Param]) -> FlatParam:
    ways = dict(kind.submesh.axes)
    used = sum(p.elements for p in params)
    shards = 1
    for axis in kind.shard_axes:
        shards *= ways[axis]
    weights = tuple(p.weight for p in params)
    elements = -(-used // shards) * shards  # padded, so that all shards are of one size
    completion = completion_of(kind.partial, kind.shard_axes, kind.tied)
    return FlatParam(number, kind.submesh, weights, kind.dtype, kind.zero, kind.shard_axes, completion, elements)


def _completed(flat: FlatParam, params: tuple[Param, ...]) -> FlatParam:
    """A flat parameter of another program, whose gradients are sums over other axes here; raises PlanError where they
    are not all alike."""
    first, *rest = (p for p in params if p.submesh == flat.submesh and p.weight in flat.weights)
    if other := next((p for p in rest if p.partial != first.partial), None):
        raise PlanError(GradientsApart(None, first.weight, first.partial, other.weight, other.partial))
    tied = next((step.submeshes for step in flat.completion if isinstance(step, SumTiedGrads)), ())
    return replace(flat, completion=completion_of(first.partial, flat.shard_axes, tied))


def completion_of(
    partial: tuple[str, ...], shard_axes: tuple[str, ...], tied: tuple[Submesh, ...]
) -> tuple[Completion, ...]:
    """The steps from a gradient that is a sum over `partial` to the shard over `shard_axes` that the optimizer needs.

    >>> completion_of(("dp", "tp"), ("dp",), ())
    (AllReduceGrads(axes=('tp',)), ReduceScatterGrads(axes=('dp',)))
    >>> completion_of(("dp",), ("dp", "tp"), ())     # over tp the gradients are equal: each device takes its part
    (ReduceScatterGrads(axes=('dp',)), ChunkGrads(axes=('tp',)))
    """
    rest = tuple(a for a in partial if a not in shard_axes)
    steps: list[Completion] = [AllReduceGrads(rest)] if rest else []
    # shards are numbered row-major over the axes, so that the outermost is cut first
    for summed, run in itertools.groupby(shard_axes, key=lambda axis: axis in partial):
        axes = tuple(run)
        steps.append(ReduceScatterGrads(axes) if summed else ChunkGrads(axes))
    if tied:
        steps.append(SumTiedGrads(tied))
    return tuple(steps)


def _sharded(plan: Plan) -> dict[State, dict[str, StateShard]]:
    return {s: {w: shard for shard in plan.shards if shard.state is s for w in shard.weights} for s in State}


def _check_shards(lowering: Lowering) -> None:
    """Raises PlanError where a statement cuts the state of no weight over one of its axes."""
    for shard in lowering.plan.shards:
        params = [p for p in lowering.params if p.weight in shard.weights]
        axes = {a: n for p in params for a, n in p.submesh.mesh.axes}
        wholes = [_whole(p) for p in params]
        for axis in shard.axes:
            if params and axes.get(axis) != 1 and not any(axis in whole for whole in wholes):
                candidates = ", ".join(f"`{a}`" for a in wholes[0]) or "there is none"
                raise PlanError(ShardConflict(shard.span, shard.state.value, params[0].weight, axis, candidates))


def _zero(param: Param, sharded: dict[State, dict[str, StateShard]]) -> tuple[Zero, tuple[str, ...]]:
    """The highest ZeRO stage that the plan asks for, and its axes: those along which the weight is replicated."""
    whole = _whole(param)
    found: dict[State, tuple[str, ...]] = {}
    for state, shards in sharded.items():
        if (shard := shards.get(param.weight)) is None:
            continue
        if axes := tuple(a for a in whole if a in shard.axes and dict(param.submesh.axes)[a] != 1):
            found[state] = axes
    for state, zero in ((State.WEIGHTS, Zero.WEIGHTS), (State.GRADS, Zero.GRADS), (State.OPTIMIZER, Zero.OPTIMIZER)):
        if state in found:
            return zero, found[state]
    return Zero.NONE, ()


def _whole(param: Param) -> list[str]:
    """The axes along which all devices have the same of a weight."""
    places = zip(param.submesh.axes, param.layout.places, strict=True)
    return [axis for (axis, _), place in places if place not in param.layout.shards()]


def _buckets(params: list[Param]) -> list[list[Param]]:
    """Params of at most about 25 MB together."""
    starts = itertools.accumulate((p.elements * ITEMSIZE.get(p.dtype, 4) for p in params), initial=0)
    buckets: dict[int, list[Param]] = {}
    for param, start in zip(params, starts, strict=False):
        buckets.setdefault(start // BUCKET_BYTES, []).append(param)
    return list(buckets.values())
