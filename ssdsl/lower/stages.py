"""The stages of the lowering: what is decided of a plan, and what each stage adds to the one before it.

    Planned       the rewritten plan, the cluster, and what the program is for
    Placed        where each operator runs, and how its own indices cut it
    Summed        the partial sums that linear operators carry on
    Divided       all splits of each operator
    Sunk          the gradients that stay partial sums on their way to weights
    Grouped       the function that each operator will be in
    TypedGraph    the types of all tensors, the kernels, and what autograd saves       checked by `check_typed`
    Segmented     the functions, as sequences of operators
    Stored        the parameters
    Needed         what functions need of each other's values
    Answered      how these needs are met
    Provided      the prologues
    Assembled     the functions with their instructions, and the messages
    Formed        the flat parameters; sections and kinds are final                    checked by `check_formed`
    Scheduled     each role's tasks and actions in order; then it is a `Program`       checked by `check_references`

A stage has all fields of the stages before it, as it is a class derived from theirs, and no field without a value. A
pass is a function from one stage to the next, or from a stage to the same one with other values; so its signature says
which facts it may read.

    >>> [stage.__name__ for stage in reversed(TypedGraph.__mro__[:6])]
    ['Placed', 'Summed', 'Divided', 'Sunk', 'Grouped', 'TypedGraph']
"""

import itertools
from collections.abc import Hashable
from typing import NamedTuple, TypeVar

from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.link import LOOPBACK, Link, MeshLinks
from ssdsl.ir.comm import Message
from ssdsl.ir.function import Carried, Function, Kernel, OpSplit, Prologue, Split
from ssdsl.ir.layout import Layout, Shape, Submesh
from ssdsl.ir.param import FlatParam, Param
from ssdsl.ir.place import Place, place_of
from ssdsl.ir.program import At, Compute, Kernels, Loss, Program, Result, Role
from ssdsl.ir.value import Coordinate, Name, Size, TimeIndex, Type
from ssdsl.lower.asks import Ask, Converted
from ssdsl.model.graph import Graph, Operator
from ssdsl.model.memory.saved_tensors import Saved
from ssdsl.plan.plan import Plan
from ssdsl.record import Record, field, field_names
from ssdsl.text.source import Span

Next = TypeVar("Next", bound="Planned")


def grown(before: "Planned", stage: type[Next], **added: object) -> Next:
    """The next stage: the values of the stage before it that it has too, and the fields that it adds."""
    kept = {name: getattr(before, name) for name in field_names(before) if name in field_names(stage)}
    return stage(**kept | added)


class Held(Record):
    """The parameters and flat parameters of the program that trains the same weights: an evaluation keeps them."""

    params: tuple[Param, ...] = ()
    flats: tuple[FlatParam, ...] = ()


class Planned(Record):
    """A rewritten plan. Parameters `held` by a program that has the weights already stay as they are. If `trains` is
    false, nothing has a gradient and no weight changes. Communication is chosen for the links of the `cluster`, by
    default for processes of one machine. `kernels` says how operators run."""

    plan: Plan
    cluster: Cluster | None = None
    held: Held = Held()
    trains: bool = True
    kernels: Kernels = Kernels.EAGER
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


# -- typed operators ---------------------------------------------------------------------------------------------------


class Placed(Planned, kw_only=True):
    """`submeshes` are the places of operators, `cuts` the splits by their own indices. Equal calls that are cut alike
    share one tuple, also on other devices. `learning` are the values that have a gradient."""

    submeshes: dict[str, Submesh]
    cuts: dict[str, tuple[Split, ...]]
    learning: frozenset[str]

    @property
    def unreached(self) -> frozenset[str]:
        """The weights that the program which holds them trains, and that this one's loss does not reach."""
        held = frozenset(p.weight for p in self.held.params if p.trained)
        return held - self.learning if self.trains else frozenset()


class Summed(Placed, kw_only=True):
    """`sums` are the partial sums that operators carry on, where there are any."""

    sums: dict[str, tuple[Carried, ...]]


class Divided(Summed, kw_only=True):
    """`splits` are all splits of each operator: by its own indices, then of the sums that it carries on."""

    splits: dict[str, tuple[OpSplit, ...]]


class Sunk(Divided, kw_only=True):
    """`sunk`: the axes and indices in time along which the gradients of an operator's outputs stay partial sums."""

    sunk: dict[str, frozenset[str]]


Kind = tuple[
    Submesh, tuple[TimeIndex, ...], tuple[Hashable, ...]
]  # submesh, indices in time, what is a task of its own:
# the numbers of ordered sets, parts that the plan names, and what runs again as a whole


class Grouped(Sunk, kw_only=True):
    """Operators of one kind and level will be one function. `joined` are those on weights alone that run in the tasks
    of their readers, with the indices in time that they get from these; they have their kind."""

    joined: dict[str, tuple[TimeIndex, ...]]
    kinds: dict[str, Kind]
    levels: dict[str, int]


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


class TypedGraph(Grouped, kw_only=True):
    """The graph in parts: each operator with the types of what its parts read and leave."""

    typed: dict[str, TypedOperator]


# -- functions ---------------------------------------------------------------------------------------------------------


class Segment(Record):
    """Operators that become one function, and their common properties. `in_halves`: the plan orders the halves of their
    backward separately. `again` is the number of what runs again together, in tasks of their own (`Function.again`)."""

    submesh: Submesh
    time: tuple[TimeIndex, ...]
    operators: tuple[Operator, ...]
    in_halves: bool
    stage: int
    again: int | None = None


class Segmented(TypedGraph, kw_only=True):
    """The segments, in an order in which they can run; by value the number of the one that makes it."""

    segments: tuple[Segment, ...]
    makers: dict[str, int]


class Stored(Segmented, kw_only=True):
    """The weights and buffers where they live."""

    params: tuple[Param, ...]


class Needed(Stored, kw_only=True):
    """By operator, the asks for its operands and for its results that are written to buffers; by name, those for the
    outputs that a report reads."""

    asks: dict[str, tuple[Ask, ...]]
    reported: dict[str, Ask]


class Answered(Needed, kw_only=True):
    """How each ask is met."""

    converted: Converted


class Provided(Answered, kw_only=True):
    """The prologues, and the names under which they provide what functions ask for."""

    prologues: tuple[Prologue, ...]
    provided: dict[tuple[str, Submesh, Layout], Name]


class Assembled(Provided, kw_only=True):
    """The functions with their instructions, the transfers between them, and what leaves the program."""

    functions: tuple[Function, ...]
    messages: tuple[Message, ...]
    losses: tuple[Loss, ...]
    results: tuple[Result, ...]


class Formed(Assembled, kw_only=True):
    """The functions in their sections, with the flat parameters that these gather."""

    flats: tuple[FlatParam, ...]


# -- order -------------------------------------------------------------------------------------------------------------


class Carry(NamedTuple):
    """One message at one coordinate in time: a value, its gradient, or a signal."""

    message: int
    at: At
    gradient: bool


Task = Compute | Carry


class Scheduled(Formed, kw_only=True):
    """Each role's tasks in order, and at the end its actions. `stated` are the statements that decide a task's place;
    `messages` have the signals that orders need, too."""

    roles: tuple[Role, ...]
    tasks: tuple[tuple[Task, ...], ...]
    stated: dict[Compute, tuple[Span, ...]]

    def program(self) -> Program:
        """The finished program."""
        return Program(
            self.plan,
            self.functions,
            self.prologues,
            self.messages,
            self.params,
            self.flats,
            self.roles,
            self.losses,
            self.stated,
            self.results,
            self.trains,
            self.unreached,
            self.kernels,
        )
