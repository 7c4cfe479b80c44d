"""Parameters: where each weight lives, and how its gradient is completed and its state is sharded.

Weights of equal treatment are laid end to end as one flat parameter, as FSDP and Megatron do. ZeRO (Rajbhandari et al.
2020) shards the state of a flat parameter over some axes of the mesh.
"""

from dataclasses import dataclass
from enum import Enum

from ssdsl.ir.layout import PARTIAL, Layout, Shape, Submesh


@dataclass(frozen=True, slots=True)
class Param:
    """A weight or buffer on a submesh. `partial` are the axes along which its gradient is a sum still to be taken.

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
        """The axes along which all devices have the same of it."""
        places = zip(self.submesh.axes, self.layout.places, strict=True)
        return tuple(axis for (axis, _), place in places if place not in self.layout.shards())

    def cut_over(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Over which of these axes, in the mesh's order, its state can be cut: those along which there are copies."""
        ways = dict(self.submesh.axes)
        return tuple(axis for axis in self.copied if axis in axes and ways[axis] != 1)

    @property
    def elements(self) -> int:
        """Elements of the local tensor, not sharded by ZeRO; of unequal parts of the largest."""
        return self.shape.local(self.layout.shards()).numel


class Zero(Enum):
    """Which state is sharded, each stage with those before it."""

    NONE = "none"
    OPTIMIZER = "optimizer"  # ZeRO-1
    GRADS = "grads"  # ZeRO-2
    WEIGHTS = "weights"  # ZeRO-3


@dataclass(frozen=True, slots=True)
class AllReduceGrads:
    """The sum over the groups along these axes, whole on every device."""

    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReduceScatterGrads:
    """The sum over the shard group, each device its part."""

    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChunkGrads:
    """Each device's part of a gradient that is whole on all of the shard group; nothing travels."""

    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SumTiedGrads:
    """The sum over all the submeshes on which the weight lives."""

    submeshes: tuple[Submesh, ...]


Completion = AllReduceGrads | ReduceScatterGrads | ChunkGrads | SumTiedGrads


@dataclass(frozen=True, slots=True)
class FlatParam:
    """Trained weights of one submesh and dtype, laid end to end, in the order in which backward completes them.

    `completion` are the steps from the gradient that backward leaves to the one that the optimizer needs. `elements`
    is the local length, gathered; where weights have unequal parts the largest. `updated_together`: the
    optimizer's step is of the whole flat parameter's shard.
    """

    number: int
    submesh: Submesh
    weights: tuple[str, ...]
    dtype: str
    zero: Zero
    shard_axes: tuple[str, ...]
    completion: tuple[Completion, ...]
    elements: int
