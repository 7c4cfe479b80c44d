"""The table of a program, `program.json`: all that is data, for every rank. The compiler fills it, and each rank reads
what it is to do (ranks/rank_setup.py). It loads no torch.
"""

import json
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import EngineError
from ..layout.regions import Regions
from ..ranks.mesh import RankMesh
from ..version import VERSION
from .codec import decoded

Box = tuple[tuple[int, int], ...]  # (start, length) per factor
Shape = tuple[tuple[int, ...], ...]  # the factors of a local tensor, axis by axis


@dataclass(frozen=True)
class MeshAxes:
    """Some axes of a mesh."""

    mesh: str
    axes: tuple[str, ...]


@dataclass(frozen=True)
class SubmeshEntry:
    """The ranks of a mesh at some fixed coordinates; `axes` are the others, or those that matter."""

    mesh: str
    fixed: dict[str, int]
    axes: tuple[str, ...]


# -- weights, inputs and outputs ---------------------------------------------------------------------------------------


class AxisTake(NamedTuple):
    """Dimension `dim` is `outer` blocks, and each rank takes the part whose number is its coordinate on the axis: of so
    many equal runs of each block, or of these regions. Of outputs the axis may be an index in time."""

    axis: str
    dim: int
    outer: int
    parts: int | Regions


@dataclass(frozen=True)
class TensorEntry:
    """A tensor with the takes that lead from the whole one, of `shape`, to the local one."""

    name: str
    shape: tuple[int, ...]
    takes: tuple[AxisTake, ...]


@dataclass(frozen=True)
class FlatEntry:
    """Weights whose gradients are completed together, step by step: each is what is done, and over which axes.

    `zero` says which of their state is sharded over `shard_axes`, `plan` is the statement behind it.
    """

    number: int
    weights: tuple[TensorEntry, ...]
    zero: str
    shard_axes: tuple[str, ...]
    completion: tuple[tuple[str, tuple[str, ...]], ...]
    plan: str


@dataclass(frozen=True)
class BatchInput:
    """A tensor of the batch, whole, with the names that the model gives its axes."""

    shape: tuple[int, ...]
    dtype: str
    axes: tuple[str, ...]


@dataclass(frozen=True)
class RequestedOutput:
    """A tensor that was asked for: the ranks that keep it, and the part that each keeps for each coordinate in `time`.

    Over the indices in `sums` the parts are addends.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    mesh: str
    fixed: dict[str, int]
    slot: str
    time: dict[str, int]
    takes: tuple[AxisTake, ...]
    sums: tuple[str, ...]


# -- roles -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Site:
    """A line of a role's file in which ranks wait for each other, or an operator looks up numbers of the batch.

    It assigns to `line`, in a function that is called for a layer. `value` and `of` are the model's, `source` is the
    line of the model that calls the operator, and `plan` the statement behind it.
    """

    function: str
    layer: str
    line: str
    value: str
    of: str
    source: str | None = field(default=None, kw_only=True)
    plan: str


@dataclass(frozen=True)
class RoleEntry:
    """Ranks that run the same code: the parts of inputs and weights that they have. `others` are not trained."""

    name: str
    mesh: str
    fixed: dict[str, int]
    inputs: tuple[TensorEntry, ...]
    flats: tuple[FlatEntry, ...]
    others: tuple[TensorEntry, ...]
    sites: tuple[Site, ...]

    @property
    def weights(self) -> tuple[TensorEntry, ...]:
        """Those that are trained, then the others and the buffers."""
        return (*(w for flat in self.flats for w in flat.weights), *self.others)


# -- messages ----------------------------------------------------------------------------------------------------------


class Parcel(NamedTuple):
    """A box that one rank of a move sends another; coordinates are those of the axes that are not aligned."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    source_box: Box
    target_box: Box


@dataclass(frozen=True)
class MoveEntry:
    """One direction of a message. Ranks that agree on the `aligned` axes exchange `pieces`."""

    aligned: tuple[str, ...]
    pieces: tuple[Parcel, ...]
    source_shape: Shape
    target_shape: Shape


@dataclass(frozen=True)
class MessageEntry:
    """A message from ranks of one submesh to ranks of another; `plan` is the statement behind it."""

    number: int
    lane: int
    plan: str
    source: SubmeshEntry
    target: SubmeshEntry
    forward: MoveEntry


@dataclass(frozen=True)
class SignalEntry(MessageEntry):
    """Tells other ranks that an earlier task is done."""

    signal: bool


@dataclass(frozen=True)
class TransferEntry(MessageEntry):
    """A value from one block to another, and its gradient back. `uneven`: factors whose size varies with an index."""

    value: str
    source_slot: str
    target_slot: str
    backward: MoveEntry | None
    dtype: str
    time: tuple[str, ...]
    uneven: dict[int, tuple[str, tuple[int, ...]]]


# -- all of it ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """All of a program that is data. Of `params` and `inputs` the keys are names, of `constants` the values dtypes.

    `groups` are axes of a mesh along which ranks exchange something. `loss` is where the loss is; its addends lie along
    the axes. `ties` are the submeshes of weights that live on several. `sparse` are weights whose gradient one device
    has as a sparse tensor. `precision` is that of a model in half precision.
    """

    version: int
    model: str
    world_size: int
    params: dict[str, int]
    flops: int
    meshes: tuple[RankMesh, ...]
    groups: tuple[MeshAxes, ...]
    loss: SubmeshEntry
    inputs: dict[str, BatchInput]
    constants: dict[str, str]
    seed: tuple[str, ...]
    outputs: tuple[RequestedOutput, ...]
    trains: bool
    ties: dict[str, tuple[SubmeshEntry, ...]]
    sparse: tuple[str, ...]
    roles: tuple[RoleEntry, ...]
    messages: tuple[SignalEntry | TransferEntry, ...]
    precision: str | None


def read_table(text: str) -> Table:
    """The table of a `program.json`; raises EngineError for one of another version."""
    written = json.loads(text)
    found = written.get("version", 1)
    if found != VERSION:
        raise EngineError(
            f"the program is of version {found}, and this runtime runs version {VERSION}",
            "give a compiled folder its own `runtime` back, install the same ssdsl on each node, or compile again",
        )
    return decoded(Table, written)
