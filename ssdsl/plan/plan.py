"""The plan: the facts that the statements of a script state about the operators of a graph.

Facts with the same content are equal, whichever statement states them: spans take no part in `==`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from math import prod
from typing import NamedTuple, TypeVar

from ssdsl.model.alter.altered import Altered
from ssdsl.model.graph import Graph, Operator
from ssdsl.plan.regions import Digit
from ssdsl.record import Record, replace
from ssdsl.text.source import Span

Portions = tuple[tuple[str, tuple[int, ...]], ...]  # of devices along axes, in proportion; none of equal ones


class InnerDevices(Record):
    """The slice of an earlier mesh that a mesh is: the devices with the `fixed` coordinates, and of one axis those of
    a `run`, (axis, start, step, count), which is then the outermost."""

    mesh: str
    fixed: tuple[tuple[str, int], ...]
    run: tuple[str, int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Mesh:
    """Devices in row-major order of the axes. The meshes of a plan take consecutive ranks, in the order of the text;
    this one's begin at `first`. While a plan is read, a mesh may be `inside` an earlier one; a finished plan has none
    such (`inner_meshes.py`)."""

    name: str
    axes: tuple[tuple[str, int], ...]
    first: int
    span: Span | None = field(default=None, compare=False)
    inside: InnerDevices | None = None


class AxisDigit(Record):
    """A digit of the number of a device along an axis of `devices`."""

    digit: Digit
    devices: int


@dataclass(frozen=True, slots=True)
class Index:
    """One cut of an operator by `split`: its dimension number `dim` is cut into the parts of a `digit`; `name` is the
    index.

    Equal runs in order are a plain digit of stride 1, which counts in parts: the lowering scales it to positions, as it
    knows what else cuts the dimension. Other parts are regions. `also` is another dimension that is cut alike, such as
    the keys of the queries; the shorter of the two may number parts of the longer one, which regions are then about.

    While a plan is read, an index may be `of_axis`, a digit of the number of a device: `split model by heads into tp`
    with tp = 4 and two heads of keys gives operators the digit with stride 2 of `heads`, and if they have
    `heads_per_group`, the one with stride 1 of that. A finished plan has axes for these (`divide_axes.py`). Parts of
    unequal sizes are then on the axis `name` and on the `inner` ones together, the last innermost.

    `outside` is 1 in a plan that was read. A rewrite gives it to operators that lack some outer indices of their
    neighbours, and must have the same parts: it is the product of those indices' parts. If `dp = 2, m = 4` cut 16 rows,
    part 0 of an operator with `m` alone and `outside = 2` is the first 2 rows of each half.

    An index `within` cuts inside all others of its dimension, whichever statement comes first: also inside those that
    only the neighbours of its operator have, if its rows come from there (`split experts by tokens into c = 2`).
    """

    name: str
    dim: int
    digit: Digit
    span: Span = field(compare=False)
    also: int | None = None
    outside: int = 1
    of_axis: AxisDigit | None = None
    inner: tuple[str, ...] = ()
    within: bool = False

    @property
    def devices(self) -> int:
        """The parts of the index as a statement says it: the devices along the axis, if it has a digit of these."""
        return self.digit.parts if self.of_axis is None else self.of_axis.devices

    def of_all(self, times: int) -> "Index":
        """The index for a dimension that is `times` as long: regions are, too."""
        return self if self.digit.at is None else replace(self, digit=self.digit.scaled(times))

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions that are cut."""
        return (self.dim,) if self.also is None else (self.dim, self.also)


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of an operator: a mesh, with some of its axes fixed to a coordinate (`gpus[pp = 1]`)."""

    mesh: str
    fixed: tuple[tuple[str, int], ...]
    span: Span = field(compare=False)

    def overlaps(self, other: "Placement") -> bool:
        """Whether the two share devices."""
        fixed = dict(self.fixed)
        return self.mesh == other.mesh and all(fixed.get(axis, at) == at for axis, at in other.fixed)

    def is_within(self, other: "Placement") -> bool:
        """Whether all of its devices are those of another one."""
        return self.mesh == other.mesh and {*other.fixed} <= {*self.fixed}

    def __str__(self) -> str:
        inside = ", ".join(f"{axis} = {coordinate}" for axis, coordinate in self.fixed)
        return f"{self.mesh}[{inside}]" if inside else self.mesh


N = TypeVar("N", int, float)


class Phase(StrEnum):
    """The phases of an operator. A plan may name the halves of a backward: the gradients of inputs (`dgrad`) and of
    weights (`wgrad`); and `again`, the second forward of what is recomputed, as a task of its own."""

    FORWARD = "fwd"
    AGAIN = "again"
    BACKWARD = "bwd"
    DGRAD = "dgrad"
    WGRAD = "wgrad"

    @property
    def is_forward(self) -> bool:
        """Whether it computes the operators themselves: for the first time, or again."""
        return self in (Phase.FORWARD, Phase.AGAIN)

    @property
    def of_inputs(self) -> bool:
        """Whether it computes the gradients of inputs. What is recomputed within backward runs in such a phase."""
        return self in (Phase.BACKWARD, Phase.DGRAD)

    @property
    def of_weights(self) -> bool:
        """Whether it computes the gradients of weights; behind it nothing of a task's forward is needed any more."""
        return self in (Phase.BACKWARD, Phase.WGRAD)

    def sum(self, forward: N, of_inputs: N, of_weights: N) -> N:
        """The part of a sum that belongs to this phase: of a forward, and of the two kinds of gradients.

        >>> [phase.sum(1, 10, 100) for phase in Phase]
        [1, 1, 110, 10, 100]
        """
        return forward if self.is_forward else of_inputs * self.of_inputs + of_weights * self.of_weights

    @property
    def word(self) -> str:
        """The phase in the program's text, in profiles and in views: `forward`, `again`, `backward`, and so on."""
        return self.name.lower()

    @property
    def letter(self) -> str:
        """The phase in a row of tasks: `F`, `A` for again, `B`, and for the halves `D` and `W`."""
        return self.name[0]


HALVES = (Phase.DGRAD, Phase.WGRAD)


class TaskSet(Record):
    """The tasks that an `order` names: the operators of a set, by its number (`OpPlan.sets`), at the indices it fixes,
    in one phase (None: both)."""

    number: int
    fixed: tuple[tuple[str, int], ...]
    phase: Phase | None


@dataclass(frozen=True, slots=True)
class Order:
    """`before -> after`. `called` is the place where the plan calls the function with this `order`, if one does."""

    before: TaskSet
    after: TaskSet
    span: Span = field(compare=False)
    called: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ClockRow:
    """A row of `order by clock` in one turn of its loop: tasks at a nominal time."""

    tasks: TaskSet
    time: int | Fraction
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class ClockOrder:
    """`order by clock`: each device runs these tasks in the order of their times; for equal times, in the order of the
    rows. `rows` are sorted so already."""

    rows: tuple[ClockRow, ...]
    span: Span = field(compare=False)
    called: Span | None = field(default=None, compare=False)


class State(StrEnum):
    """The state of weights that ZeRO shards."""

    WEIGHTS = "weights"
    GRADS = "grads"
    OPTIMIZER = "optimizer"

    @property
    def stage(self) -> int:
        """The first ZeRO stage that shards this state; later stages shard it, too."""
        return {State.OPTIMIZER: 1, State.GRADS: 2, State.WEIGHTS: 3}[self]


@dataclass(frozen=True, slots=True)
class StateShard:
    """`split OPS.weights by row into dp`: this state of the weights is sharded over mesh axes. Trained weights are cut
    as one flat tensor (`lower/params/flatten_params.py`), frozen ones along a dimension (`place_params.py`). With
    `whole`, as by `split OPS.optimizer by matrix into dp`, the parts of the optimizer's state are whole weights, each
    on the devices at one coordinate (`home_matrices.py`). `portions` are those of the devices along an axis, where they
    are unequal: `into dp = [3, 3, 2]`."""

    state: State
    weights: frozenset[str]
    axes: tuple[str, ...]
    span: Span = field(compare=False)
    whole: bool = False
    portions: Portions = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """A number that a statement gives an operator, such as that of a checkpoint. It has the statement's span."""

    value: int
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class WeightsMark:
    """A number that a statement gives weights: `prefetch OPS.weights by 1`, while up to how many modules before theirs
    they are gathered; or `bucket OPS.grads by 25`, up to how many megabytes of their gradients are reduced together."""

    weights: frozenset[str]
    value: int
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Keep:
    """`keep OPS.weights through m`: weights in parts (ZeRO-3) that have been gathered stay `through` all parts of an
    index, or of None through a step; `in_backward`, of the tasks of backward alone. With `axes` they stay in parts over
    these, which are gathered where they are read."""

    weights: frozenset[str]
    axes: tuple[str, ...]
    through: str | None
    in_backward: bool
    span: Span = field(compare=False)

    @property
    def how(self) -> tuple[tuple[str, ...], str | None, bool]:
        """What it says of each of the weights."""
        return self.axes, self.through, self.in_backward


@dataclass(frozen=True, slots=True)
class OnHost:
    """`assign OPS.optimizer to host`: this state of the weights lies in the memory of the host, which steps on it; with
    the weights themselves also the optimizer's."""

    state: State
    weights: frozenset[str]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Precision:
    """`precision OPS to bf16`: these operators compute in a type of torch's, such as `bfloat16`; `selected` are the
    plan's words for them."""

    operators: frozenset[str]
    dtype: str
    selected: str
    span: Span = field(compare=False)


class LineOf(NamedTuple):
    """A result of an operator, and its axis, along which it is compressed: the `k` largest numbers of each line are
    kept, or all in eight bits."""

    operator: str
    result: int
    axis: int
    k: int | None


@dataclass(frozen=True, slots=True)
class Compression:
    """`compress OPS by topk(64) along embed`: what others read of these operators is compressed. `how`, `dim` and
    `selected` are the plan's words."""

    operators: frozenset[str]
    how: str
    lines: tuple[LineOf, ...]
    dim: str
    selected: str
    span: Span = field(compare=False)


class PartRun(Record):
    """Parts `first` to `first + count - 1` of the `total` parts of an index: those that an operator is, where a plan
    names parts (`separate.py`)."""

    index: str
    first: int
    count: int
    total: int

    @property
    def end(self) -> int:
        """The number behind the last of the parts."""
        return self.first + self.count

    def has(self, part: int) -> bool:
        """Whether a part is one of these."""
        return self.first <= part < self.end

    @property
    def word(self) -> str:
        """The parts in names of copies: `way1`, `m0_to_3`."""
        return f"{self.index}{self.first}" + (f"_to_{self.end - 1}" if self.count > 1 else "")

    def __str__(self) -> str:
        return f"{self.index} = {self.first}" + (f" to {self.end - 1}" if self.count > 1 else "")


class OpPlan(Record):
    """Everything that a plan says of one operator. An operator beside another takes its record
    (`neighbours/place_beside.py`).

    - `indices` are in the order in which they cut (for one dimension: outermost first). `whole` are indices that it
      lacks because it needs all of their dimension.
    - `checkpoint` is the number of the checkpoint in which it is recomputed, among those of its layer: so equal layers
      share their records. With `regathers`, backward gathers its gathered operands again.
    - `within` is the number of the region around its checkpoint that runs again as a whole, in a task of its own: there
      the checkpoint keeps what enters it, and runs once more in backward.
    - With `offload`, what backward keeps of it lies on the host in between.
    - Values that are sent to it are requested up to `ahead` values ahead of the one that it reads next.
    - `sets` are the numbers of the sets of operators in `order` statements to which it belongs.
    - `copies` are further places that compute it, too, for their own readers.
    - `parts` are the parts of indices that it is, where the plan names parts. They are a task of their own.
    - `stays` is for repeated constants, which are otherwise computed beside each of their readers: the `assign` that
      places this one places nothing but such constants, so it stays at the place that the plan gives it.
    """

    place: Placement | None = None
    indices: tuple[Index, ...] = ()
    whole: tuple[Index, ...] = ()
    checkpoint: Mark | None = None
    within: Mark | None = None
    regathers: Mark | None = None
    offload: Mark | None = None
    ahead: Mark | None = None
    sets: frozenset[int] = frozenset()
    parts: tuple[PartRun, ...] = ()
    copies: tuple[Placement, ...] = ()
    stays: bool = False

    @property
    def is_recomputed(self) -> bool:
        """Whether its forward runs again in backward."""
        return self.checkpoint is not None or self.within is not None

    @property
    def selected(self) -> str:
        """The parts that it is, as a plan writes them behind operators: `[way = 1]`; empty for whole operators."""
        return f"[{', '.join(map(str, self.parts))}]" if self.parts else ""

    def module(self, operator: Operator) -> str:
        """The module that calls the operator, with the parts that it is: `h.0.mlp[way = 1]`."""
        return f"{operator.module}{self.selected}"

    @property
    def home(self) -> Placement:
        """The place, for an operator that must have one: all operators of stage COMPUTE do."""
        assert self.place is not None, "the interpreter refuses plans that leave an operator without a place"
        return self.place


NOTHING = OpPlan()
AHEAD = 2  # the default of `prefetch`
WEIGHTS_AHEAD = 1  # that of `prefetch OPS.weights`, as in FSDP2


class DividedAxis(Record):
    """An axis that a mesh has as several, the outermost first, because dimensions are too short for all of it, or
    because a mesh `by` this name has other boundaries inside of it."""

    mesh: str
    name: str
    axes: tuple[tuple[str, int], ...]
    by: str = ""

    @property
    def size(self) -> int:
        """The number of devices along it."""
        return prod(n for _, n in self.axes)

    def between(self, inner: int, outer: int) -> list[tuple[str, int]]:
        """The axes that have the digits between two strides.

        >>> DividedAxis("gpus", "d", (("d_outer", 2), ("d_inner", 3))).between(1, 3)
        [('d_inner', 3)]
        """
        return [(name, count) for name, count, stride in self._strides() if inner <= stride < outer]

    def coordinates(self, at: int) -> list[tuple[str, int]]:
        """The coordinates on the axes of the device with this number."""
        return [(name, at // stride % count) for name, count, stride in self._strides()]

    def _strides(self) -> Iterator[tuple[str, int, int]]:
        inside = self.size
        for name, count in self.axes:
            inside //= count
            yield name, count, inside


OverAxes = TypeVar("OverAxes", StateShard, Keep)


class StatePlan(Record):
    """Everything that a plan says of weights, their gradients and the optimizer's state. `matrices` are the statements
    by which the optimizer's state is in whole weights; `shards` are the others about parts of state."""

    shards: tuple[StateShard, ...] = ()
    matrices: tuple[StateShard, ...] = ()
    prefetched: tuple[WeightsMark, ...] = ()
    buckets: tuple[WeightsMark, ...] = ()
    kept: tuple[Keep, ...] = ()
    on_host: tuple[OnHost, ...] = ()

    def on_axes(
        self, axes_of: Callable[[StateShard | Keep], Iterable[tuple[frozenset[str], tuple[str, ...]]]]
    ) -> "StatePlan":
        """The same over other axes: `axes_of` gives for a statement its weights, in groups, each with the axes that
        stand for its own."""

        def on(said: Iterable[OverAxes]) -> tuple[OverAxes, ...]:
            return tuple(replace(one, weights=weights, axes=axes) for one in said for weights, axes in axes_of(one))

        return replace(self, shards=on(self.shards), matrices=on(self.matrices), kept=on(self.kept))

    def gathered_ahead(self, weights: Iterable[str]) -> int:
        """How many gathers before its reader's a gather of these weights starts: the largest number of any."""
        marks = (_mark_of(self.prefetched, weight) for weight in weights)
        return max((WEIGHTS_AHEAD if mark is None else mark for mark in marks), default=0)

    def bucket_megabytes(self, weight: str) -> int | None:
        """The size of the bucket in which the gradient of a weight lies; None if the plan does not say."""
        return _mark_of(self.buckets, weight)

    def on_host_of(self, weight: str) -> State | None:
        """What of a weight lies in the memory of the host: the optimizer's state, or the weight with it."""
        found = {stated.state for stated in self.on_host if weight in stated.weights}
        return State.WEIGHTS if State.WEIGHTS in found else next(iter(found), None)


NO_STATE = StatePlan()


class Plan(Record):
    """All facts of a script about a graph. Each fact has the span of its statement.

    `operators` has the records of operators, in the order of the graph, without empty ones. Only operators of stage
    COMPUTE have a place; constants and data operators run wherever their consumers are. `params` are the values that
    hold: those of `--set`, else the defaults. `state` is what it says of weights. `divided` are the axes in the place
    of which meshes have others. With `altered` the graph is that of another model than the captured
    one: with casts, or compressions.
    """

    graph: Graph
    meshes: tuple[Mesh, ...]
    params: dict[str, int]
    operators: dict[str, OpPlan]
    orders: tuple[Order, ...] = ()
    clocks: tuple[ClockOrder, ...] = ()
    state: StatePlan = NO_STATE
    divided: tuple[DividedAxis, ...] = ()
    altered: Altered | None = None

    def of(self, operator: str) -> OpPlan:
        """The record of an operator; `NOTHING` if the plan says nothing of it."""
        return self.operators.get(operator, NOTHING)

    def ahead(self, operators: Iterable[str]) -> int:
        """The number of values of a message that may have arrived before a task of these operators reads them, beside
        the one that it reads next: the largest `prefetch`."""
        marks = (self.of(name).ahead for name in operators)
        return max((mark.value for mark in marks if mark is not None), default=AHEAD)

    @property
    def host_span(self) -> Span | None:
        """The first statement that assigns something to the host."""
        marks = (record.offload for record in self.operators.values())
        return next((stated.span for stated in (*self.state.on_host, *marks) if stated is not None), None)

    def said(self, operator: str, index: str) -> Span | None:
        """The span of the `split` that cuts an operator by an index; None if there is none."""
        return next((i.span for i in self.of(operator).indices if i.name == index), None)

    def cutting(self, indices: Mapping[str, tuple[Index, ...]]) -> "Plan":
        """The plan, with the indices of some operators replaced."""
        changed = {name: replace(self.of(name), indices=found) for name, found in indices.items()}
        return replace(self, operators=self.operators | changed)

    def order_spans(self) -> Iterator[Span]:
        """The places in the plan itself that state its orders: the statement, a row of a clock, or a call that contains
        it."""
        yield from (order.called or order.span for order in self.orders)
        yield from (clock.called or row.span for clock in self.clocks for row in clock.rows)

    def ordered(self) -> Iterator[TaskSet]:
        """The task sets of all orders and clocks."""
        for order in self.orders:
            yield from (order.before, order.after)
        for clock in self.clocks:
            yield from (row.tasks for row in clock.rows)

    @property
    def devices(self) -> int:
        """The number of devices that the plan needs."""
        last = self.meshes[-1]
        return last.first + prod(n for _, n in last.axes)


def _mark_of(marks: Iterable[WeightsMark], weight: str) -> int | None:
    return next((mark.value for mark in marks if weight in mark.weights), None)
