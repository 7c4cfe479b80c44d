"""The plan: what the statements of a script said about the operators of a graph.

Facts that say the same are equal, whichever statement says so: spans take no part in `==`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction

from ssdsl.model.graph import Graph
from ssdsl.plan.regions import Regions, lengths_of
from ssdsl.text.source import Span


@dataclass(frozen=True, slots=True)
class Mesh:
    """Devices in row-major order of the axes. Meshes of one plan take consecutive ranks from `first`, in the order of
    the text."""

    name: str
    axes: tuple[tuple[str, int], ...]
    first: int
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Index:
    """What a `split` adds to an operator: its dimension number `dim` is cut into `count` parts, named `name`.

    `at` says which positions each part has, where they are not equal runs one behind the other, else it is None. `also`
    is another dimension that is cut alike: the keys of the queries. `outside` is how many equal parts lie outside of
    these, all of them together: lowering cuts so what lies inside of the parts of other operators.
    """

    name: str
    count: int
    dim: int
    span: Span = field(compare=False)
    at: Regions | None = None
    also: int | None = None
    outside: int = 1

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """The sizes of the parts that `at` gives."""
        return None if self.at is None else lengths_of(self.at)

    def of_all(self, times: int) -> "Index":
        """The index of a dimension that is so many times as long."""
        if self.at is None or times == 1:
            return self
        return replace(self, at=tuple(tuple((s * times, e * times) for s, e in runs) for runs in self.at))

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions that are cut."""
        return (self.dim,) if self.also is None else (self.dim, self.also)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an operator runs: a mesh, with some of its axes fixed to a coordinate (`gpus[pp = 1]`)."""

    mesh: str
    fixed: tuple[tuple[str, int], ...]
    span: Span = field(compare=False)

    def __str__(self) -> str:
        inside = ", ".join(f"{axis} = {coordinate}" for axis, coordinate in self.fixed)
        return f"{self.mesh}[{inside}]" if inside else self.mesh


class Phase(StrEnum):
    """A plan may name the halves of a backward: the gradients of its inputs, and those of its weights."""

    FORWARD = "fwd"
    BACKWARD = "bwd"
    DGRAD = "dgrad"
    WGRAD = "wgrad"


HALVES = (Phase.DGRAD, Phase.WGRAD)


@dataclass(frozen=True, slots=True)
class TaskSet:
    """The tasks that an `order` names: operators, the indices it fixes, and a phase (None: both)."""

    operators: frozenset[str]
    fixed: tuple[tuple[str, int], ...]
    phase: Phase | None


@dataclass(frozen=True, slots=True)
class Order:
    """`before -> after`. `called` is where the plan called the function that says so, if one does."""

    before: TaskSet
    after: TaskSet
    span: Span = field(compare=False)
    called: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Timed:
    """A row of `order by clock` in one turn of its loop: tasks at a nominal time."""

    tasks: TaskSet
    time: int | Fraction
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Clock:
    """`order by clock`: each device runs these in the order of their times, equal ones in the order of the rows.

    `rows` are in that order already.
    """

    rows: tuple[Timed, ...]
    span: Span = field(compare=False)
    called: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Recompute:
    """Operators whose activations are dropped and computed again in backward, one checkpoint per unit.

    A unit is the set of operators that one match of a path, or one element of a list, selected.
    """

    units: tuple[frozenset[str], ...]
    span: Span = field(compare=False)


class State(StrEnum):
    WEIGHTS = "weights"
    GRADS = "grads"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class Shard:
    """`split OPS.weights by row into dp`: the state of these weights is cut along its first axis over mesh axes."""

    state: State
    weights: frozenset[str]
    axes: tuple[str, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """All facts of a script about a graph. Dictionaries are keyed by operator name and ordered as the graph.

    `indices[op]` are in the order in which they cut (for one dimension: outermost first). Only operators of stage
    COMPUTE have a placement; constants and data operators run wherever their consumers are. `params` are the values
    in force. `whole[op]` are the indices that an operator would have if it did not need all of their dimension. Each
    fact has the span of what says it.
    """

    graph: Graph
    meshes: tuple[Mesh, ...]
    params: dict[str, int]
    indices: dict[str, tuple[Index, ...]]
    placements: dict[str, Placement]
    orders: tuple[Order, ...]
    clocks: tuple[Clock, ...]
    recomputes: tuple[Recompute, ...]
    shards: tuple[Shard, ...]
    whole: dict[str, tuple[Index, ...]] = field(default_factory=dict)
    prefetched: dict[str, tuple[int, Span]] = field(default_factory=dict)  # values that an operator may receive ahead
    regathered: dict[str, Span] = field(default_factory=dict)  # operators for which values are gathered again

    def order_spans(self) -> Iterator[Span]:
        """Where the plan itself says each of its orders: the statement, a row of a clock, or a call that has it."""
        yield from (order.called or order.span for order in self.orders)
        yield from (clock.called or row.span for clock in self.clocks for row in clock.rows)

    def ordered(self) -> Iterator[TaskSet]:
        """All sets of tasks that the plan orders."""
        for order in self.orders:
            yield from (order.before, order.after)
        for clock in self.clocks:
            yield from (row.tasks for row in clock.rows)

    @property
    def devices(self) -> int:
        """How many devices the plan needs."""
        last = self.meshes[-1]
        size = 1
        for _, n in last.axes:
            size *= n
        return last.first + size
