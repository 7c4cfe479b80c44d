"""Parameters: the place of each weight, the completion of its gradient, and the sharding of its state.

Weights with the same treatment are concatenated as one flat parameter, as in FSDP and Megatron. ZeRO (Rajbhandari et
al. 2020) shards the state of a flat parameter over some axes of the mesh.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from types import MappingProxyType
from typing import ClassVar, NamedTuple

from ssdsl.ir.comm import AllGather, AllReduce, Narrow, ReduceScatter
from ssdsl.ir.layout import PARTIAL, Layout, Shape, Shard, Submesh
from ssdsl.plan.plan import Portions, State
from ssdsl.record import Record
from ssdsl.runtime.layout.portions import joint_portions


class Param(Record):
    """A weight or buffer on a submesh. `partial` are the axes along which its gradient is a pending sum.

    It is `trained` if the loss depends on it through differentiable operators; otherwise it gets no gradient and is not
    updated.
    """

    weight: str
    submesh: Submesh
    shape: Shape
    layout: Layout
    partial: tuple[str, ...]
    trained: bool
    dtype: str

    @property
    def gradient(self) -> Layout:
        """The layout of the gradient that backward leaves."""
        axes = zip(self.submesh.axes, self.layout.places, strict=True)
        return Layout(tuple(PARTIAL if a in self.partial else place for (a, _), place in axes))

    @property
    def copied(self) -> tuple[str, ...]:
        """The axes along which all devices have the same part of it."""
        places = zip(self.submesh.axes, self.layout.places, strict=True)
        return tuple([axis for (axis, _), place in places if not isinstance(place, Shard)])

    @property
    def unequal(self) -> tuple[str, ...]:
        """The axes along which its parts differ in size."""
        places = zip(self.submesh.axes, self.layout.places, strict=True)
        return tuple(a for (a, _), place in places if isinstance(place, Shard) and place.digit.is_unequal)

    def cut_over(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """The axes among these over which its state can be sharded, in the mesh's order: those along which the weight
        is replicated, and which have more than one device."""
        ways = dict(self.submesh.axes)
        return tuple([axis for axis in self.copied if axis in axes and ways[axis] != 1])

    @property
    def elements(self) -> int:
        """The elements of the local tensor, before ZeRO shards it; the largest part if parts are unequal."""
        return _elements(self.shape, self.layout)


@lru_cache(maxsize=4096)  # the layers of a model share shapes and layouts
def _elements(shape: Shape, layout: Layout) -> int:
    return shape.local(layout.shards()).numel


class StateAxes(Record):
    """The axes over which the state of weights is sharded. Those of gradients begin with those of weights, those of the
    optimizer's state with those of gradients: gradients of weights in parts are in these parts at least.

    ZeRO-1 shards the optimizer's state, ZeRO-2 gradients too, ZeRO-3 weights too. Over unlike axes they are nested, as
    in hybrid sharding and ZeRO++ (Wang et al. 2023): weights over the devices of a node, and the optimizer's state over
    all nodes, is `StateAxes(("gpu",), ("gpu",), ("gpu", "node"))`. Along an axis devices have equal parts, or such in
    proportion to `portions`.
    """

    weights: tuple[str, ...] = ()
    grads: tuple[str, ...] = ()
    optimizer: tuple[str, ...] = ()
    portions: Portions = ()

    def portions_over(self, axes: Iterable[str], ways: Mapping[str, int]) -> tuple[int, ...]:
        """The portions of the devices along these axes, of so many devices each; the last axis is the innermost."""
        return joint_portions(axes, ways, self.portions)

    def largest_over(
        self, axes: Iterable[str], ways: Mapping[str, int], at: Mapping[str, int] = MappingProxyType({})
    ) -> tuple[int, int]:
        """The largest of these portions, of the devices at these coordinates, and the sum of all.

        >>> StateAxes(optimizer=("dp",), portions=(("dp", (3, 3, 2)),)).largest_over(("dp", "tp"), {"dp": 3, "tp": 2})
        (3, 16)
        """
        given = dict(self.portions)
        largest = total = 1
        for axis in axes:
            own = given.get(axis)
            largest *= 1 if own is None else own[at[axis]] if axis in at else max(own)
            total *= ways[axis] if own is None else sum(own)
        return largest, total

    def of(self, state: State) -> tuple[str, ...]:
        """The axes of one state."""
        return {State.WEIGHTS: self.weights, State.GRADS: self.grads, State.OPTIMIZER: self.optimizer}[state]

    @property
    def levels(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """The axes of the weights' shards, and those over which gradients and the optimizer's state are cut further.

        >>> StateAxes(("gpu",), ("gpu",), ("gpu", "node")).levels
        (('gpu',), (), ('node',))
        """
        return self.weights, self.grads[len(self.weights) :], self.optimizer[len(self.grads) :]

    @property
    def updated(self) -> tuple[str, ...]:
        """The axes over which weights are updated in parts, and gathered afterwards."""
        return self.optimizer[len(self.weights) :]


class SumTiedGrads(Record):
    """Sums a gradient over all submeshes on which a tied weight lives."""

    kind: ClassVar[str] = "sum_tied"

    submeshes: tuple[Submesh, ...]


CompletionStep = AllReduce | ReduceScatter | Narrow | AllGather | SumTiedGrads


class Completion(NamedTuple):
    """The steps from the gradient that backward leaves to the one that the optimizer needs, by the time at which they
    run. A flat gradient is a tensor of one axis: it is summed along axes, cut into parts, and joined again.

    `in_backward` run within the backward of each section that gathered weights (ZeRO-3), `each` after each backward
    that adds to the gradient (ZeRO-2), or after the last one of those through which weights stay, `once` after the last
    one of all.
    """

    in_backward: tuple[CompletionStep, ...] = ()
    each: tuple[CompletionStep, ...] = ()
    once: tuple[CompletionStep, ...] = ()

    @property
    def steps(self) -> tuple[CompletionStep, ...]:
        """All steps in order."""
        return (*self.in_backward, *self.each, *self.once)

    @property
    def tied(self) -> tuple[Submesh, ...]:
        """The submeshes whose copies of a tied weight are summed; none for other weights."""
        return next((step.submeshes for step in self.once if isinstance(step, SumTiedGrads)), ())

    @property
    def started(self) -> tuple[CompletionStep, ...]:
        """The steps of `once` that run while tasks go on: those up to the first in which devices communicate."""
        own = self._own_once
        return own[: next((n for n, step in enumerate(own, 1) if not isinstance(step, Narrow)), len(own))]

    @property
    def awaited(self) -> tuple[CompletionStep, ...]:
        """The steps of `once` that run when the reduction is awaited: those behind the ones with which it starts. The
        sum over the copies of a tied weight follows them."""
        return self._own_once[len(self.started) :]

    @property
    def _own_once(self) -> tuple[CompletionStep, ...]:
        return tuple(step for step in self.once if not isinstance(step, SumTiedGrads))


class Home(Record):
    """The devices on which the optimizer steps on a weight as a whole: those at `at` along `axes`. All devices that
    differ along these axes alone have the weight together. They send its gradient home, and get its new values."""

    axes: tuple[str, ...]
    at: tuple[int, ...]

    def devices(self, submesh: Submesh) -> Iterator[tuple[int, ...]]:
        """Yields the devices by their coordinates along all axes of the weight's submesh."""
        fixed = dict(zip(self.axes, self.at, strict=True))
        return product(*((fixed[axis],) if axis in fixed else range(size) for axis, size in submesh.axes))


class Kept(Record):
    """How long gathered weights stay: `through` all parts of an index in time, or of None through a step, one
    direction after the other; `in_backward` alone, or in both. With `axes` they stay in parts over these, from which
    they are gathered until then; without, whole, and so do their gradients, which are reduced once for all of it."""

    axes: tuple[str, ...] = ()
    through: str | None = None
    in_backward: bool = False


class FlatParam(Record):
    """Trained weights of one submesh and dtype, laid end to end, in the order in which backward completes them.

    `elements` is the length on a device before it is sharded, padded so that it can be cut into equal parts, or into
    such as the portions say; the largest one if weights have unequal parts. Weights in parts are gathered up to `ahead`
    sections before they are read. `homes` are those of the weights, in their order, where the optimizer needs whole
    ones: None for a weight that each of its devices has whole; the optimizer's state lies there then, and not with
    `sharded`. `kept` says how long gathered weights stay, if not with their reader alone. `on_host`: the optimizer's
    state lies in the memory of the host, which updates the weights; or the weights in parts lie there with it, and come
    from there where they are gathered.
    """

    number: int
    submesh: Submesh
    weights: tuple[str, ...]
    dtype: str
    sharded: StateAxes
    completion: Completion
    elements: int
    ahead: int = 0
    homes: tuple[Home | None, ...] = ()
    kept: Kept | None = None
    on_host: State | None = None

    @property
    def stays_whole(self) -> bool:
        """Whether gathered weights stay whole, so that gradients of several tasks are added before they are reduced."""
        return self.kept is not None and not self.kept.axes

    @property
    def cuts(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """The axes over which its gradient is in parts behind the steps of each time of its completion."""
        return () if self.stays_whole else self.sharded.weights, self.sharded.grads, self.sharded.optimizer

    def elements_over(self, axes: tuple[str, ...], at: Mapping[str, int] = MappingProxyType({})) -> int:
        """The elements of a shard over these axes: of the largest one, or of that at these coordinates."""
        largest, total = self.sharded.largest_over(axes, dict(self.submesh.axes), at)
        return self.elements * largest // total

    def gathered_over(self, axes: tuple[str, ...], within: tuple[str, ...] = ()) -> int:
        """The elements that a gather over these axes returns, `within` the parts over others. Each device sends as many
        as the one with the largest part."""
        return math.prod(n for axis, n in self.submesh.axes if axis in axes) * self.elements_over((*within, *axes))


def by_portions(submesh: Submesh, flats: Iterable[FlatParam]) -> list[tuple[dict[str, int], tuple[int, ...]]]:
    """The devices of a submesh in groups that have the same portions of the state of all flat parameters: ranks, and
    the coordinates of one of them along the axes with portions."""
    portions = dict.fromkeys(one for flat in flats for one in flat.sharded.portions)
    if not portions:
        return [({}, tuple(submesh.ranks()))]
    cut = {axis for axis, _ in portions}
    groups: dict[tuple[int, ...], tuple[dict[str, int], list[int]]] = {}
    for place, rank in zip(product(*(range(n) for _, n in submesh.axes)), submesh.ranks(), strict=True):
        at = {axis: c for (axis, _), c in zip(submesh.axes, place, strict=True) if axis in cut}
        own = tuple(given[at[axis]] for axis, given in portions)
        groups.setdefault(own, (at, []))[1].append(rank)
    return [(where, tuple(ranks)) for where, ranks in groups.values()]
