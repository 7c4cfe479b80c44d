"""Parameters: the place of each weight, the completion of its gradient, and the sharding of its state.

Weights with the same treatment are concatenated as one flat parameter, as in FSDP and Megatron. ZeRO (Rajbhandari et
al. 2020) shards the state of a flat parameter over some axes of the mesh.
"""

from dataclasses import dataclass
from enum import Enum

from ssdsl.ir.layout import PARTIAL, Layout, Shape, Submesh


@dataclass(frozen=True, slots=True)
class Param:
    """A weight or buffer on a submesh. `partial` are the axes along which its gradient is a pending sum.

    `trained`: the loss depends on it through differentiable operators; another one gets no gradient and is not updated.
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
        return tuple(axis for (axis, _), place in places if place not in self.layout.shards())

    def cut_over(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """The axes among these over which its state can be sharded, in the mesh's order: the weight is replicated along
        them."""
        ways = dict(self.submesh.axes)
        return tuple(axis for axis in self.copied if axis in axes and ways[axis] != 1)

    @property
    def elements(self) -> int:
        """The elements of the local tensor, before ZeRO shards it; the largest part if parts are unequal."""
        return self.shape.local(self.layout.shards()).numel


class Zero(Enum):
    """The state that is sharded: each stage adds to those before it."""

    NONE = "none"
    OPTIMIZER = "optimizer"  # ZeRO-1
    GRADS = "grads"  # ZeRO-2
    WEIGHTS = "weights"  # ZeRO-3


@dataclass(frozen=True, slots=True)
class AllReduceGrads:
    """Sums a gradient over the groups along these axes; every device gets the whole sum."""

    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReduceScatterGrads:
    """Sums a gradient over the groups along these axes; every device gets its part of the sum."""

    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChunkGrads:
    """Keeps each device's part of a gradient that is equal along these axes; nothing travels."""

    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GatherGrads:
    """Joins the parts of a gradient that the devices of the groups along these axes have; every device gets all."""

    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SumTiedGrads:
    """Sums a gradient over all submeshes on which a tied weight lives."""

    submeshes: tuple[Submesh, ...]


Completion = AllReduceGrads | ReduceScatterGrads | ChunkGrads | GatherGrads | SumTiedGrads


@dataclass(frozen=True, slots=True)
class FlatParam:
    """Trained weights of one submesh and dtype, laid end to end, in the order in which backward completes them.

    `completion` are the steps from the gradient that backward leaves to the one that the optimizer needs. `elements`
    is the length on a device before ZeRO shards it, padded to equal parts of it; the largest one if weights have
    unequal parts.
    """

    number: int
    submesh: Submesh
    weights: tuple[str, ...]
    dtype: str
    zero: Zero
    shard_axes: tuple[str, ...]
    completion: tuple[Completion, ...]
    elements: int

    @property
    def gathers(self) -> tuple[GatherGrads, ...]:
        """The steps that join parts of its gradient."""
        return tuple(step for step in self.completion if isinstance(step, GatherGrads))

    @property
    def awaited(self) -> tuple[GatherGrads, ...]:
        """The steps that come where the reduction is awaited: the gathers of a gradient that is reduced whole, in the
        background. The steps to a shard come where it starts."""
        return self.gathers if self.zero is Zero.NONE else ()
