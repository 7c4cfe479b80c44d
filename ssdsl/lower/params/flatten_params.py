"""Lays trained weights end to end as flat parameters, which are reduced, and whose state is sharded, as one tensor."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ssdsl.ir.comm import AllGather, AllReduce, Narrow, ReduceScatter
from ssdsl.ir.layout import Cut, Submesh
from ssdsl.ir.param import Completion, CompletionStep, FlatParam, Kept, Param, StateAxes, SumTiedGrads
from ssdsl.lower.errors import StateApart
from ssdsl.lower.params.gather_weights import weights_of
from ssdsl.lower.params.on_host import check_on_host
from ssdsl.lower.params.share_reductions import shared_axes
from ssdsl.lower.resized_errors import GradientsApart
from ssdsl.lower.stages import Assembled, Formed, grown
from ssdsl.model.dims.layers import layer_of, layer_paths
from ssdsl.model.graph import ITEMSIZE
from ssdsl.plan.plan import Plan, State
from ssdsl.plan.plan import StateShard as StateShard
from ssdsl.record import replace
from ssdsl.runtime.layout.portions import parts_in
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Span

MOST_BYTES = 25 << 20  # of a bucket, as PyTorch's DistributedDataParallel
BUCKETS = 4  # at least so many, if not too small: the first are reduced while backward still runs in other layers
LEAST_BYTES = 1 << 19  # of a bucket, for each rank: a ring sends that much at once (Megatron-LM's grow with ranks, too)
STATES = {State.WEIGHTS: "weights", State.GRADS: "gradients", State.OPTIMIZER: "optimizer's state"}

_Cut = dict[State, tuple[tuple[str, ...], StateShard]]  # a parameter's state: its axes, and the statement behind them


_Reader = tuple[str, int]  # a function, and the number of one of its sections


class _Kind(NamedTuple):
    """The properties that weights share to be in one flat parameter. `where`: with ZeRO-3, the module whose weights are
    gathered together; for a tied weight whose copies differ in more than their devices, its own name; else empty.
    `readers`: with ZeRO-3, the sections that gather them: where a layer is in several, as one that is recomputed in
    part, each gathers no more than it reads.

    `unequal`: the axes along which parts of a weight differ in size. What lies behind such a part has another address
    on each device, and a matrix product may round otherwise where its operand is aligned otherwise: copies of a weight
    would drift apart."""

    submesh: Submesh
    partial: tuple[str, ...]
    sharded: StateAxes
    tied: tuple[Submesh, ...]
    where: str
    dtype: str
    unequal: tuple[str, ...]
    readers: tuple[_Reader, ...] = ()
    bucket: int | None = None  # megabytes, if the plan says so
    shares: tuple[str, ...] = ()  # the axes along which copies share a reduction
    kept: Kept | None = None  # how long they stay, with ZeRO-3
    on_host: State | None = None

    @property
    def summed(self) -> tuple[str, ...]:
        """The axes over which a gradient, or the shard of it, is all_reduced."""
        return tuple(axis for axis in self.partial if axis not in self.sharded.optimizer)

    def copies(self, param: Param) -> tuple[str, ...]:
        """The axes along which devices have the same gradient, or the same shard of it, of one of the parameters."""
        if self.tied and self.sharded.optimizer:
            return ()  # the shards of all homes are of one size
        axes = param.cut_over(tuple(axis for axis, _ in self.submesh.axes))
        return tuple(axis for axis in axes if axis not in self.partial and axis not in self.sharded.optimizer)


_Copied = tuple[_Kind, tuple[str, ...], Param]  # a parameter, its kind, and the axes along which it has copies


def flatten_params(lowering: Assembled) -> Formed:
    """Adds the flat parameters, in the order in which backward completes their gradients (last layers first).

    Of two layers on two devices, with `split model.weights by row into dp`:

        + flat0 on gpus : f32[36] zero weights over (dp), 1 ahead; gradient by reduce_scatter<dp> in backward
        +   layers.1.2.bias
        +   layers.1.2.weight
        ...
        + flat3 on gpus : f32[40] zero weights over (dp), 1 ahead; gradient by reduce_scatter<dp> in backward

    Raises PlanError: state that cannot be sharded as the plan says.
    """
    if not lowering.trains:
        return grown(lowering, Formed, flats=lowering.held.flats)
    if lowering.held.flats:
        unreached = lowering.unreached
        reached = tuple(p for p in lowering.params if p.weight not in unreached)
        return grown(lowering, Formed, flats=tuple(_completed(flat, reached) for flat in lowering.held.flats))
    layers = layer_paths(lowering.graph)
    homes: dict[str, list[Param]] = {}
    for param in lowering.params:
        homes.setdefault(param.weight, []).append(param)
    cuts = _cuts(lowering)
    _check_nested(lowering, cuts)
    check_on_host(lowering, [_sharded(cut) for cut in cuts])
    readers = _readers(lowering)
    kinds: list[_Copied] = []
    for param, cut in zip(reversed(lowering.params), reversed(cuts), strict=True):
        if not param.trained:
            continue
        own = homes[param.weight]
        tied = tuple(p.submesh for p in own) if len(own) > 1 else ()
        is_alike = len({s.axes for s in tied}) <= 1  # copies of unlike devices cannot sum their parts one by one
        sharded = _sharded(cut) if is_alike else StateAxes()
        where, read = "", tuple[_Reader, ...]()
        if tied and (sharded.optimizer or not _are_one_sum(own)):
            where = param.weight
        elif sharded.weights:
            layer = layer_of(param.weight, layers)
            where = layer or param.weight.rpartition(".")[0]
            read = readers.get((param.weight, param.submesh), ()) if layer else ()
        about = param.submesh, param.partial, sharded, tied, where, param.dtype, param.unequal, read
        kind = _Kind(
            *about,
            bucket=lowering.plan.state.bucket_megabytes(param.weight),
            kept=_kept(lowering.plan, param.weight, sharded),
            on_host=lowering.plan.state.on_host_of(param.weight),
        )
        kinds.append((kind, kind.copies(param), param))
    shares = _shares(lowering, kinds)
    groups: dict[_Kind, list[Param]] = {}
    for kind, copies, param in kinds:
        groups.setdefault(kind._replace(shares=shares[kind, copies]), []).append(param)
    buckets = [(kind, bucket) for kind, params in groups.items() for bucket in _buckets(kind, params)]
    flats = (_flat(lowering.plan, n, kind, bucket) for n, (kind, bucket) in enumerate(buckets))
    return grown(lowering, Formed, flats=tuple(flats))


def _are_one_sum(copies: list[Param]) -> bool:
    """Whether the copies of a tied weight are so alike that its gradient may be summed with those of others."""
    return len({(p.submesh.axes, p.layout, p.partial, p.dtype) for p in copies}) == 1


def _readers(lowering: Assembled) -> dict[tuple[str, Submesh], tuple[_Reader, ...]]:
    """The sections that read each weight, where some are stored in parts."""
    found: dict[tuple[str, Submesh], list[_Reader]] = {}
    for function in lowering.functions if any(s.state is State.WEIGHTS for s in lowering.plan.state.shards) else ():
        for number, section in enumerate(function.sections):
            for weight in weights_of(section, function):
                found.setdefault((weight, function.submesh), []).append((function.name, number))
    return {weight: tuple(readers) for weight, readers in found.items()}


def _shares(lowering: Assembled, kinds: list[_Copied]) -> dict[tuple[_Kind, tuple[str, ...]], tuple[str, ...]]:
    """For the weights of each kind that have the same copies, the axes along which these share a reduction."""
    sizes: dict[tuple[_Kind, tuple[str, ...]], int] = {}
    for kind, copies, param in kinds:
        key = kind, copies
        sizes[key] = sizes.get(key, 0) + param.elements * ITEMSIZE.get(param.dtype, 4)
    unlike = Counter(kind for kind, _ in sizes)
    return {
        (kind, copies): shared_axes(
            lowering,
            kind.submesh,
            kind.summed,
            copies,
            min(size, MOST_BYTES) // math.prod(n for axis, n in kind.submesh.axes if axis in kind.sharded.optimizer),
            is_alone=unlike[kind] == 1,
        )
        for (kind, copies), size in sizes.items()
    }


def _flat(plan: Plan, number: int, kind: _Kind, params: list[Param]) -> FlatParam:
    ways = dict(kind.submesh.axes)
    used = sum(p.elements for p in params)
    _, parts = kind.sharded.largest_over((*kind.sharded.optimizer, *kind.shares), ways)
    weights = tuple(p.weight for p in params)
    elements = -(-used // parts) * parts  # padded, so that parts are of one size, or as the portions say
    ahead = plan.state.gathered_ahead(weights) if kind.sharded.weights else 0
    about = number, kind.submesh, weights, kind.dtype, kind.sharded, Completion(), elements, ahead
    flat = FlatParam(*about, kept=kind.kept, on_host=kind.on_host)
    return _with_completion(flat, kind.partial, kind.tied, kind.shares)


def _with_completion(
    flat: FlatParam, partial: tuple[str, ...], tied: tuple[Submesh, ...], shares: tuple[str, ...] = ()
) -> FlatParam:
    """The flat parameter with the completion of a gradient that is a sum over `partial`."""
    about = partial, flat.sharded, flat.elements, dict(flat.submesh.axes)
    return replace(flat, completion=completion_of(*about, tied, shares, stays_whole=flat.stays_whole))


def _kept(plan: Plan, weight: str, sharded: StateAxes) -> Kept | None:
    """How long a weight stays once it is gathered, if the plan says so: in other parts than it has anyway."""
    said = next((keep for keep in plan.state.kept if weight in keep.weights), None) if sharded.weights else None
    if said is None:
        return None
    axes = tuple(axis for axis in sharded.weights if axis in said.axes)
    return None if axes == sharded.weights else Kept(axes, said.through, said.in_backward)


def _completed(flat: FlatParam, params: tuple[Param, ...]) -> FlatParam:
    """A flat parameter of the program that trains, with the completion that its gradients need here: copies that share
    a reduction there share it here. `params` are those that the loss reaches. Raises PlanError if its weights'
    gradients are not sums over the same axes."""
    weights = frozenset(flat.weights)
    mine = [p for p in params if p.submesh == flat.submesh and p.weight in weights]
    if not mine:
        return _with_completion(flat, (), flat.completion.tied)
    first, *rest = mine
    if other := next((p for p in rest if p.partial != first.partial), None):
        raise PlanError(GradientsApart(None, first.weight, first.partial, other.weight, other.partial))
    gathers = (step.axes for step in flat.completion.once if isinstance(step, AllGather))
    shares = next((axes for axes in gathers if not set(axes) & set(first.partial)), ())
    return _with_completion(flat, first.partial, flat.completion.tied, shares)


def completion_of(
    partial: tuple[str, ...],
    sharded: StateAxes,
    elements: int,
    ways: Mapping[str, int],
    tied: tuple[Submesh, ...] = (),
    shares: tuple[str, ...] = (),
    *,
    stays_whole: bool = False,
) -> Completion:
    """The steps from a gradient of so many elements, a sum over `partial`, to the shard of it that the optimizer needs;
    `ways` are the sizes of the submesh's axes. Along `shares` it is equal, and each device reduces its part. If the
    weights stay whole through several tasks, so does their gradient.

    A gradient is cut before it is summed over other axes, so that only a shard of it goes over these, once a step:

    >>> ways = {"node": 2, "gpu": 4}
    >>> found = completion_of(("node", "gpu"), StateAxes(("gpu",), ("gpu",), ("gpu",)), 16, ways)
    >>> [(step.kind, step.axes, step.elements) for step in found.steps]
    [('reduce_scatter', ('gpu',), 16), ('all_reduce', ('node',), 4)]

    A gradient that is equal over gpu: each device takes its part of a shard; or a copy reduces its part, and gathers
    the others.

    >>> for found in (
    ...     completion_of(("node",), StateAxes(optimizer=("node", "gpu")), 16, ways),
    ...     completion_of(("node",), StateAxes(), 16, ways, shares=("gpu",)),
    ... ):
    ...     print([step.kind for step in found.once])
    ['reduce_scatter', 'narrow']
    ['narrow', 'all_reduce', 'all_gather']
    """
    rest = tuple(a for a in partial if a not in sharded.optimizer)
    in_backward, each, last = (tuple(_cut_steps(partial, axes)) for axes in sharded.levels)
    if stays_whole:
        in_backward, each = (), (*in_backward, *each)
    once: list[_Planned] = [*last]
    if rest and shares:
        once += [(Narrow, shares), (AllReduce, rest), (AllGather, shares)]
    elif rest:
        once.append((AllReduce, rest))
    sizes = _Sizes(elements, ways, sharded)
    steps = tuple(tuple(sizes.step(kind, axes) for kind, axes in found) for found in (in_backward, each, once))
    return Completion(steps[0], steps[1], (*steps[2], *([SumTiedGrads(tied)] if tied else [])))


_Planned = tuple[type[AllReduce | ReduceScatter | Narrow | AllGather], tuple[str, ...]]  # a step, and its axes


@dataclass(slots=True)
class _Sizes:
    """The elements of a gradient between two steps, on the device that has most: after a step that cuts it, the next
    ones are smaller."""

    elements: int
    ways: Mapping[str, int]
    sharded: StateAxes

    def step(self, kind: type[AllReduce | ReduceScatter | Narrow | AllGather], axes: tuple[str, ...]) -> CompletionStep:
        """The step of this kind on the gradient as it is now."""
        ranks = math.prod(self.ways[axis] for axis in axes)
        cut, before = Cut(0, 1, ranks), self.elements
        if kind is AllReduce:
            return AllReduce(axes, before)
        if kind is AllGather:
            self.elements *= ranks
            return AllGather(axes, self.elements, cut)
        largest, total = self.sharded.largest_over(axes, self.ways)
        self.elements = before * largest // total
        if largest * ranks > total:
            cut = replace(cut, at=parts_in(self.sharded.portions_over(axes, self.ways), before))
        return ReduceScatter(axes, ranks * self.elements, cut) if kind is ReduceScatter else Narrow(axes, before, cut)


def _cut_steps(partial: tuple[str, ...], axes: tuple[str, ...]) -> Iterator[_Planned]:
    """Yields the steps that cut a gradient over these axes. Shards are numbered row-major over the axes, so that the
    outermost is cut first."""
    for is_summed, run in itertools.groupby(axes, key=lambda axis: axis in partial):
        yield ReduceScatter if is_summed else Narrow, tuple(run)


def _cuts(lowering: Assembled) -> list[_Cut]:
    """For each parameter, the axes over which each of its states is cut, with the statement: weights first."""
    shards = {(s.state, weight): s for s in lowering.plan.state.shards for weight in s.weights}
    found = []
    for param in lowering.params:
        said = [(state, shard) for state in State if (shard := shards.get((state, param.weight))) is not None]
        found.append({state: (axes, shard) for state, shard in said if (axes := param.cut_over(shard.axes))})
    return found


def _check_nested(lowering: Assembled, cuts: list[_Cut]) -> None:
    """Raises PlanError for a state of a trained weight that is not cut over all axes over which the states before it
    are."""
    wrong: dict[Span, StateApart] = {}
    for param, cut in zip(lowering.params, cuts, strict=True):
        for (before, (held, by)), (state, (axes, shard)) in itertools.pairwise(cut.items() if param.trained else ()):
            if not {*held} <= {*axes}:
                words = STATES[state], param.weight, axes, STATES[before], held
                wrong.setdefault(shard.span, StateApart(shard.span, *words, by.span))
    if wrong:
        raise PlanError(*wrong.values())


def _sharded(cut: _Cut) -> StateAxes:
    """The axes of each state of a parameter: its own, behind those of the state before it."""
    axes: list[tuple[str, ...]] = [()]
    portions: dict[str, tuple[int, ...]] = {}
    for state in State:
        own, shard = cut.get(state, ((), None))
        axes.append((*axes[-1], *(axis for axis in own if axis not in axes[-1])))
        portions |= shard.portions if shard is not None else ()
    weights, grads, optimizer = axes[1:]
    return StateAxes(weights, grads, optimizer, tuple((a, portions[a]) for a in optimizer if a in portions))


def _buckets(kind: _Kind, params: list[Param]) -> list[list[Param]]:
    """Params that are reduced together, in their order. A bucket ends with the param that fills it, so that small ones
    share one with a large one; gathered weights (ZeRO-3) are together a module's."""
    sizes = [p.elements * ITEMSIZE.get(p.dtype, 4) for p in params]
    most = MOST_BYTES
    if kind.bucket is not None:
        most = kind.bucket << 20
    elif kind.partial and not kind.sharded.weights:
        ranks = math.prod(ways for axis, ways in kind.submesh.axes if axis in kind.partial)
        most = min(MOST_BYTES, max(LEAST_BYTES * ranks, -(-sum(sizes) // BUCKETS)))
    buckets: list[list[Param]] = []
    held = most
    for param, size in zip(params, sizes, strict=True):
        if held >= most:
            buckets.append([])
            held = 0
        buckets[-1].append(param)
        held += size
    return buckets
