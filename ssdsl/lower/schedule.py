"""The schedule: blocks of operators, the communication in and between them, and each role's tasks in order.

Nothing here is enumerated that is symmetric: a block stands for itself on every device of its submesh, a transfer for
the sends and receives of all of them.
"""

from dataclasses import dataclass, field

from ssdsl.lower.cuts import OperatorCut
from ssdsl.lower.layout import Cut, Layout, Shape, Submesh
from ssdsl.lower.reshard import Step
from ssdsl.model.graph import Graph
from ssdsl.plan.plan import Phase, Plan
from ssdsl.text.source import Span


@dataclass(frozen=True, slots=True)
class TimeIndex:
    """An index whose parts run one after another; `sizes` where they are unequal."""

    name: str
    count: int
    sizes: tuple[int, ...] | None = None


def base(name: str) -> str:
    """The value of the graph behind a name in a block, which may be that of a version of it (`x@1`)."""
    return name.partition("@")[0]


@dataclass(frozen=True, slots=True)
class Conversion:
    """Turns a value into the layout that some operators need: collectives forward, and those of its gradient backward.

    `takes` are then cut out of the result, one per index in time that the consumer has and the value has not.
    """

    value: str
    result: str
    forward: tuple[Step, ...]
    backward: tuple[Step, ...]
    takes: tuple["Take", ...] = ()


@dataclass(frozen=True, slots=True)
class Take:
    """The part of a tensor that belongs to one value of an index in time."""

    index: str
    cut: Cut


@dataclass(frozen=True, slots=True)
class Combine:
    """How the parts of a value along an index in time become one: joined where `cut` says, or summed without it."""

    index: str
    count: int
    cut: Cut | None


@dataclass(frozen=True, slots=True)
class Input:
    """A value that a block reads from another block: the parts over `combines` made one. `producer` is a block
    number."""

    value: str
    producer: int
    combines: tuple[Combine, ...]
    differentiable: bool


@dataclass(frozen=True, slots=True)
class Output:
    """A value that leaves its block. `name` is what it is called there: the value, or a conversion of it that completes
    partial sums before it goes to other devices (`sent`)."""

    value: str
    name: str
    differentiable: bool
    sent: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """Operators that run together: one autograd segment. `reads[op]` names, operand by operand, what each operator
    reads. `halves`: the plan orders the two halves of its backward apart. Blocks that only their depth tells apart have
    the same `stage`."""

    number: int
    name: str
    submesh: Submesh
    time: tuple[TimeIndex, ...]
    operators: tuple[str, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    conversions: tuple[Conversion, ...]
    reads: dict[str, tuple[str, ...]]
    units: dict[str, int]  # operator -> recompute unit
    has_backward: bool
    weights: tuple[str, ...]
    halves: bool = False
    stage: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """A box that one device of a transfer sends another; coordinates are those of the axes that are not aligned."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    source_box: tuple[tuple[int, int], ...]
    target_box: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Move:
    """One direction of a transfer. Devices that agree on the `aligned` axes exchange `pieces`.

    A box is a (start, length) for every factor of the local tensor, which has shape `source_shape` / `target_shape`.
    """

    aligned: tuple[str, ...]
    pieces: tuple[Piece, ...]
    source_shape: Shape
    target_shape: Shape


@dataclass(frozen=True, slots=True)
class Transfer:
    """A value of one block that another reads on other devices: forward, and its gradient back.

    A transfer without a value is a signal: an `order` across devices, for which the later task waits.
    """

    number: int
    value: str
    producer: int
    consumer: int
    source: Submesh
    target: Submesh
    forward: Move
    backward: Move | None
    dtype: str
    time: tuple[TimeIndex, ...]

    def ends(self, phase: Phase) -> tuple[Submesh, Submesh]:
        """Where a value leaves and arrives, or, backward, its gradient."""
        return (self.source, self.target) if phase is Phase.FORWARD else (self.target, self.source)


@dataclass(frozen=True, slots=True)
class Task:
    """A block at one coordinate in one phase; or, with `transfer`, the sending of a value (of a gradient, backward)."""

    block: int
    coordinate: tuple[int, ...]
    phase: Phase
    transfer: int | None = None


# What programs and views call the phases of a block; in lower case, those of a transfer.
LETTERS = {Phase.FORWARD: "F", Phase.BACKWARD: "B", Phase.DGRAD: "D", Phase.WGRAD: "W"}


@dataclass(frozen=True, slots=True)
class Prepared:
    """Constants and data operators of a submesh, in order, with the conversions to what blocks read."""

    submesh: Submesh
    operators: tuple[str, ...]
    reads: dict[str, tuple[str, ...]]
    conversions: tuple[Conversion, ...]
    results: tuple[str, ...]  # the names that blocks read


@dataclass(frozen=True, slots=True)
class Home:
    """A weight on a submesh: its layout there, the axes along which its gradient is a partial sum, and where its
    state is cut."""

    weight: str
    submesh: Submesh
    shape: Shape
    layout: Layout
    partial: tuple[str, ...]
    weights_over: tuple[str, ...] = ()
    grads_over: tuple[str, ...] = ()
    optimizer_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Role:
    """Devices that run the same code: those of a mesh whose `fixed` axes have these coordinates."""

    name: str
    mesh: str
    fixed: tuple[tuple[str, int], ...]
    tasks: tuple[Task, ...]

    def is_in(self, submesh: Submesh) -> bool:
        """Whether these devices lie in a submesh; they do all or none."""
        held = dict(submesh.fixed)
        return submesh.mesh.name == self.mesh and all(held.get(axis, at) == at for axis, at in self.fixed)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that the programs are written from."""

    plan: Plan
    blocks: tuple[Block, ...]
    prepared: tuple[Prepared, ...]
    transfers: tuple[Transfer, ...]
    homes: tuple[Home, ...]
    roles: tuple[Role, ...]
    cuts: dict[str, tuple[OperatorCut, ...]]
    loss_partial: tuple[str, ...]
    stated: dict[Task, tuple[Span, ...]] = field(default_factory=dict)  # the statements that ordered a task

    @property
    def graph(self) -> Graph:
        return self.plan.graph
