"""The value that passes take and return, `Lowering`: a plan with everything that has been decided so far.

An `Ask` is the need that one function has of a value. The answer, `ValueVersions`, says how each version of that value
is made, and in which function. It has no name of the value (its names are versions of "") and numbers functions from 0,
so equal values of equal layers share one answer.
"""

import dataclasses
import itertools
from collections.abc import Hashable
from typing import NamedTuple

from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.link import LOOPBACK, Link, MeshLinks
from ssdsl.ir.comm import Message, Move
from ssdsl.ir.function import Conversion, Function, Kernel, Merge, OpSplit, Prologue, Split
from ssdsl.ir.layout import Layout, Shape, Submesh
from ssdsl.ir.param import FlatParam, Param
from ssdsl.ir.place import Place, place_of
from ssdsl.ir.program import At, Compute, Loss, Program, Result, Role
from ssdsl.ir.value import Coordinate, Name, Size, TimeIndex, Type, Var
from ssdsl.model.graph import Graph, Operator
from ssdsl.model.memory.saved_tensors import Saved
from ssdsl.plan.plan import Plan
from ssdsl.record import Record, field
from ssdsl.text.diagnostic import InternalError, PlanError
from ssdsl.text.source import Span


class Carry(NamedTuple):
    """One message at one coordinate in time: a value, its gradient, or a signal."""

    message: int
    at: At
    gradient: bool


Task = Compute | Carry


# -- asks for values, and answers --------------------------------------------------------------------------------------


class Need(Record):
    """The type in which an operator needs a tensor, and that of the gradient that it returns (None: no gradient)."""

    shape: Shape
    type: Type
    gradient: Type | None


class Ask(Record, eq=False):
    """The need that function number `function` has of a value. `at` is the place in the order of the program: the
    position of an operator and the number of its operand. Two asks with equal keys need the same.

    An output of the program has no need: it asks for the value as its function leaves it, with its sums taken.
    """

    value: str
    function: int
    need: Need | None
    key: Hashable
    at: tuple[int, int]


class Entering(Record):
    """A version that a function is given: a weight's, or one that the prologue provides."""

    var: Var


class SentVersions(Record):
    """The moves that bring a version to other devices, and its gradient back. `uneven` are the factors whose size
    varies with an index in time."""

    forward: Move
    backward: Move | None
    uneven: tuple[tuple[int, TimeIndex], ...]


class Received(Record):
    """A version that a function reads from another function, or from itself, which left it under the name `left`."""

    var: Var
    producer: int
    left: Name
    merges: tuple[Merge, ...]
    sent: SentVersions | None = None


What = Entering | Received | Conversion


@dataclasses.dataclass(slots=True)
class ValueVersions:
    """The versions of one value: for each, how it is `made`, by function and version number. Version 0 of function 0 is
    the operator's own result.

    `versions` holds the version that meets each ask, up to the first ask that is refused. `moves_rows` holds the
    versions that are made by moving rows to other devices: the number of the ask, and the types before and after.
    """

    made: dict[tuple[int, int], What] = dataclasses.field(default_factory=dict)
    versions: list[int] = dataclasses.field(default_factory=list)
    moves_rows: dict[tuple[int, int], tuple[int, Type, Type]] = dataclasses.field(default_factory=dict)
    refusal: PlanError | None = None


Counts = dict[tuple[int, Name], tuple[Ask, Ask]]  # for versions made by moving rows: their counts before and after


class Converted(Record):
    """The result of `convert_values`: for a value and a function the answer, and the functions that it numbers; the
    name under which each ask is met; the asks for `counts` of rows."""

    answers: dict[tuple[str, int], tuple[ValueVersions, tuple[int, ...]]] = field(default_factory=dict)
    names: dict[Ask, Name] = field(default_factory=dict)
    counts: Counts = field(default_factory=dict)


# -- the lowering ------------------------------------------------------------------------------------------------------


Kind = tuple[Submesh, tuple[TimeIndex, ...], tuple[int, ...]]  # submesh, indices in time, numbers of ordered sets


class Segment(Record):
    """Operators that become one function, and their common properties. `in_halves`: the plan orders the halves of their
    backward separately."""

    submesh: Submesh
    time: tuple[TimeIndex, ...]
    operators: tuple[Operator, ...]
    in_halves: bool
    stage: int


class Held(Record):
    """The parameters and flat parameters of the program that trains the same weights: an evaluation keeps them."""

    params: tuple[Param, ...] = ()
    flats: tuple[FlatParam, ...] = ()


class TypedOperand(Record):
    """A tensor as an operator reads or leaves it: its whole shape, its type, its gradient's type, its local sizes."""

    shape: Shape
    type: Type
    gradient: Type
    sizes: tuple[Size, ...]


class TypedOperator(Record):
    """An operator's types: what its parts read and leave, and their kernel. Along the coordinates `first` only the
    first part adds an operand such as a bias. `number` stands for the pair of call and cut. `saved` is what autograd
    saves for its backward, if it has one."""

    number: int
    reads: tuple[TypedOperand, ...]
    results: tuple[TypedOperand, ...]
    kernel: Kernel
    first: tuple[Coordinate, ...]
    saved: Saved


class Lowering(Record):
    """A partly lowered plan. Each pass adds its fields, or replaces those of an earlier one.

    By operator: `cuts`, the splits by its own indices, and `splits`, all of them; `joined`, the indices in time that an
    operator on weights alone gets from its readers; `sunk`, the axes and indices along which the gradients of its
    outputs stay partial sums; `kinds` and `levels`: operators of one kind and level are one function. `makers` are the
    numbers of the functions that make values. `learning` are the values that have a gradient; `tasks` are each role's
    tasks in order. Parameters `held` by a program that has the weights already stay as they are. If `trains` is false,
    nothing has a gradient and no weight changes. Communication is chosen for the links of the `cluster`, by default for
    processes of one machine.
    """

    plan: Plan
    cluster: Cluster | None = None
    held: Held = Held()
    trains: bool = True
    submeshes: dict[str, Submesh] = field(default_factory=dict)
    cuts: dict[str, tuple[Split, ...]] = field(default_factory=dict)
    learning: frozenset[str] = frozenset()
    splits: dict[str, tuple[OpSplit, ...]] = field(default_factory=dict)
    sunk: dict[str, frozenset[str]] = field(default_factory=dict)
    joined: dict[str, tuple[TimeIndex, ...]] = field(default_factory=dict)
    typed: dict[str, TypedOperator] = field(default_factory=dict)
    kinds: dict[str, Kind] = field(default_factory=dict)
    levels: dict[str, int] = field(default_factory=dict)
    segments: tuple[Segment, ...] = ()
    makers: dict[str, int] = field(default_factory=dict)
    asks: dict[str, tuple[Ask, ...]] = field(default_factory=dict)
    reported: dict[str, Ask] = field(default_factory=dict)
    converted: Converted = field(default_factory=Converted)
    provided: dict[tuple[str, Submesh, Layout], Name] = field(default_factory=dict)
    params: tuple[Param, ...] = ()
    flats: tuple[FlatParam, ...] = ()
    functions: tuple[Function, ...] = ()
    prologues: tuple[Prologue, ...] = ()
    messages: tuple[Message, ...] = ()
    loss: Loss | None = None
    results: tuple[Result, ...] = ()
    tasks: tuple[tuple[Task, ...], ...] = ()
    stated: dict[Compute, tuple[Span, ...]] = field(default_factory=dict)
    roles: tuple[Role, ...] = ()
    _links: dict[Place, MeshLinks] = field(default_factory=dict)
    _rings: dict[tuple[Place, tuple[str, ...]], Link] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        """The graph of the model."""
        return self.plan.graph

    def links(self, submesh: Submesh) -> MeshLinks:
        """The links of a submesh, where the cluster is known also those of rings over several axes."""
        key = place_of(self.cluster, submesh)
        if key not in self._links:
            along = tuple(self.ring(submesh, (axis,)) for axis, _ in submesh.axes)
            wide = [number for number, (_, ways) in enumerate(submesh.axes) if ways > 1] if self.cluster else []
            several = (over for size in range(2, len(wide) + 1) for over in itertools.combinations(wide, size))
            rings = ((over, self.ring(submesh, tuple(submesh.axes[n][0] for n in over))) for over in several)
            self._links[key] = MeshLinks(along, tuple(rings))
        return self._links[key]

    def ring(self, submesh: Submesh, axes: tuple[str, ...]) -> Link:
        """The link of a ring over some axes of a submesh: the slowest among their groups."""
        if self.cluster is None:
            return LOOPBACK
        key = place_of(self.cluster, submesh), axes
        if key not in self._rings:
            found = (self.cluster.ring(group) for group in submesh.groups(axes))
            self._rings[key] = min(found, key=lambda link: link.bandwidth)
        return self._rings[key]

    def program(self) -> Program:
        """The finished program; raises InternalError before `assemble`."""
        if self.loss is None:
            raise InternalError("no pass has placed the loss")
        return Program(
            self.plan,
            self.functions,
            self.prologues,
            self.messages,
            self.params,
            self.flats,
            self.roles,
            self.loss,
            self.stated,
            self.results,
            self.trains,
            self.unreached,
        )

    @property
    def unreached(self) -> frozenset[str]:
        """The weights that the program which holds them trains, and that this one's loss does not reach."""
        held = frozenset(p.weight for p in self.held.params if p.trained)
        return held - self.learning if self.trains else frozenset()
