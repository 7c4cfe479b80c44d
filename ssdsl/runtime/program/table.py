"""The table of a program, `program.json`: all data, for every rank. The compiler fills it, and each rank looks up its
own part (step/rank_setup.py). This module does not import torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import EngineError
from ..layout.mesh import RankMesh
from ..layout.regions import Regions
from ..version import VERSION
from .codec import decoded
from .returned import Leaf

Box = tuple[tuple[int, int], ...]  # (start, length) per factor
Shape = tuple[tuple[int, ...], ...]  # the factors of a local tensor, axis by axis
Axes = tuple[str, ...]
Steps = tuple[tuple[str, Axes], ...]


@dataclass(frozen=True)
class MeshAxes:
    """Some axes of a mesh."""

    mesh: str
    axes: tuple[str, ...]


@dataclass(frozen=True)
class SubmeshEntry:
    """The ranks of a mesh at some fixed coordinates; `axes` are the other axes, or those of them that matter."""

    mesh: str
    fixed: dict[str, int]
    axes: tuple[str, ...]


# -- weights, inputs and outputs ---------------------------------------------------------------------------------------


class AxisTake(NamedTuple):
    """Dimension `dim` consists of `outer` blocks, and each rank takes the part with its coordinate on the axis: one of
    so many equal runs of each block, or one of these regions. For outputs the axis may be a time index. Several
    axes, each with its number of devices, are one coordinate together, the last one innermost."""

    axis: str | tuple[tuple[str, int], ...]
    dim: int
    outer: int
    parts: int | Regions

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes along which ranks take other parts."""
        return (self.axis,) if isinstance(self.axis, str) else tuple(axis for axis, _ in self.axis)

    def part(self, at: Mapping[str, int]) -> int:
        """The number of the part at the coordinates of a rank.

        >>> AxisTake((("node", 2), ("gpu", 4)), 0, 1, 8).part({"gpu": 3, "node": 1})
        7
        """
        part = 0
        for axis, count in ((self.axis, 1),) if isinstance(self.axis, str) else self.axis:
            part = part * count + at[axis]
        return part


@dataclass(frozen=True)
class TensorEntry:
    """A tensor with the takes that lead from the whole tensor, of `shape`, to the local one."""

    name: str
    shape: tuple[int, ...]
    takes: tuple[AxisTake, ...]


@dataclass(frozen=True)
class HomeEntry:
    """The ranks on which the optimizer steps on a whole weight: those at `at` along `axes`."""

    axes: Axes
    at: tuple[int, ...]


@dataclass(frozen=True)
class FlatEntry:
    """Weights whose gradients are completed together; `plan` is the statement behind it.

    `sharded` has the axes over which the weights are in parts between steps, those over which gradients are cut
    further, and those over which the optimizer's state is. `completion` has the steps in the backward of gathered
    weights, after each backward, and after the last; each is an operation and the axes that it goes over. Gathers of
    weights start `ahead` gathers before the one that is awaited. `homes` are those of the weights, if there are any.
    What lies in the memory of the host is `on_host`: "optimizer", its state alone, "weights" with it, or nothing.
    Gathered weights stay through several tasks in parts over the axes `kept`, whole without any; None if they do not.
    Along axes with `portions` the parts are in this proportion, along others they are equal.
    """

    number: int
    weights: tuple[TensorEntry, ...]
    sharded: tuple[Axes, Axes, Axes]
    completion: tuple[Steps, Steps, Steps]
    plan: str
    ahead: int = 0
    homes: tuple[HomeEntry | None, ...] = ()
    kept: Axes | None = None
    on_host: str = ""
    portions: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class BatchInput:
    """A whole tensor of the batch, with the model's names of its axes."""

    shape: tuple[int, ...]
    dtype: str
    axes: tuple[str, ...]


@dataclass(frozen=True)
class RequestedOutput:
    """An output that was asked for: the ranks that keep it, and the part that each keeps for each coordinate in `time`.

    Over the indices in `sums` the parts are to be added.
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


def starred(layer: str) -> str:
    """A layer's path as the texts of a role's file have it, whose functions are called for several layers.

    >>> starred("transformer.h.11")
    'transformer.h.*'
    """
    return ".".join("*" if part.isdigit() else part for part in layer.split("."))


def in_layer(text: str, layer: str) -> str:
    """A text of a role's file, in a function that runs for a layer.

    >>> in_layer("transformer.h.*.attn.c_proj addmm", "transformer.h.11")
    'transformer.h.11.attn.c_proj addmm'
    """
    return text.replace(starred(layer), layer) if layer else text


class OperatorSite(NamedTuple):
    """The operator in a line of a role's file. `module` is its module, with stars for numbers of the layer that the
    function is called for; `source` is the model's line that calls the operator, and `plan` the statement that cuts or
    places it. `reads`: it reads integers of the batch, which may be out of range."""

    kind: str
    module: str
    source: str
    plan: str
    reads: bool


@dataclass(frozen=True)
class RoleEntry:
    """A role, that is ranks that run the same code, with its parts of inputs and weights. `others` are not trained;
    `operators` has those in the lines of its file, `constants` are those of which a rank keeps a part."""

    name: str
    mesh: str
    fixed: dict[str, int]
    inputs: tuple[TensorEntry, ...]
    flats: tuple[FlatEntry, ...]
    others: tuple[TensorEntry, ...]
    operators: dict[int, OperatorSite]
    constants: tuple[TensorEntry, ...] = ()

    @property
    def weights(self) -> tuple[TensorEntry, ...]:
        """Trained weights, then other weights and buffers."""
        return (*(w for flat in self.flats for w in flat.weights), *self.others)


# -- messages ----------------------------------------------------------------------------------------------------------


class Parcel(NamedTuple):
    """A box that one rank of a message sends another; coordinates are those of the axes that are not aligned."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    source_box: Box
    target_box: Box


@dataclass(frozen=True)
class MoveEntry:
    """One direction of a message. Ranks with equal coordinates on the `aligned` axes exchange `pieces`. With
    `broadcast`, those of one rank and one box are sent to all their receivers together."""

    aligned: tuple[str, ...]
    pieces: tuple[Parcel, ...]
    source_shape: Shape
    target_shape: Shape
    broadcast: bool = False


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
    """A signal to other ranks that an earlier task is done."""

    signal: bool


@dataclass(frozen=True)
class TransferEntry(MessageEntry):
    """A value sent from one block to another, and its gradient back. `uneven`: factors whose size depends on a time
    index."""

    value: str
    source_slot: str
    target_slot: str
    backward: MoveEntry | None
    dtype: str
    time: tuple[str, ...]
    uneven: dict[int, tuple[str, tuple[int, ...]]]


# -- the whole table -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """All data of a program. Keys of `params` and `inputs` are names; values of `constants` are dtypes.

    `groups` are axes of a mesh along which ranks communicate. `losses` has, by the number of a block that computes the
    loss, or an addend of it, its place, with the axes over which it is summed. `returned` has the outputs in the
    structure that the forward returns. `ties` are the submeshes of weights that live on several. `sparse` are weights
    whose gradient is sparse on one device. `precision` is set for a model in half precision.
    """

    version: int
    model: str
    world_size: int
    params: dict[str, int]
    flops: int
    meshes: tuple[RankMesh, ...]
    groups: tuple[MeshAxes, ...]
    losses: dict[int, SubmeshEntry]
    inputs: dict[str, BatchInput]
    constants: dict[str, str]
    seed: tuple[str, ...]
    outputs: tuple[RequestedOutput, ...]
    returned: tuple[Leaf, ...]
    trains: bool
    unreached: tuple[str, ...]
    ties: dict[str, tuple[SubmeshEntry, ...]]
    sparse: tuple[str, ...]
    roles: tuple[RoleEntry, ...]
    messages: tuple[SignalEntry | TransferEntry, ...]
    precision: str | None


def read_table(text: str) -> Table:
    """Parses a `program.json`; raises EngineError for one of another version."""
    written = json.loads(text)
    found = written.get("version", 1)
    if found != VERSION:
        raise EngineError(
            f"the program is of version {found}, and this runtime runs version {VERSION}",
            "give a compiled folder its own `runtime` back, install the same ssdsl on each node, or compile again",
        )
    return decoded(Table, written)
