"""The facts that the statements of a plan have stated so far.

The records of operators are stored by the operators' numbers in the graph, because statements change hundreds at once.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, fields

from ssdsl.identity import ByIdentity, places_of
from ssdsl.lang.nodes import Statement, Word
from ssdsl.plan.model_index import ModelIndex
from ssdsl.plan.plan import (
    NOTHING,
    ClockOrder,
    Compression,
    Index,
    Keep,
    Mesh,
    OnHost,
    OpPlan,
    Order,
    PartRun,
    Precision,
    StateShard,
    TaskSet,
    WeightsMark,
)
from ssdsl.record import Record, replace
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Span


class Records(Mapping[str, OpPlan]):
    """The records of operators, in the order of the graph. `numbers` has the position of each operator, `at` the record
    at each position, None if the plan says nothing."""

    __slots__ = ("at", "numbers")

    def __init__(self, numbers: Mapping[str, int], at: list[OpPlan | None] | None = None) -> None:
        self.numbers = numbers
        self.at: list[OpPlan | None] = [None] * len(numbers) if at is None else at

    def __getitem__(self, name: str) -> OpPlan:
        if (record := self.at[self.numbers[name]]) is None:
            raise KeyError(name)
        return record

    def __iter__(self) -> Iterator[str]:
        return (name for name, record in zip(self.numbers, self.at, strict=True) if record is not None)

    def __len__(self) -> int:
        return len(self.at) - self.at.count(None)

    def __copy__(self) -> "Records":
        return Records(self.numbers, [*self.at])


class NumberOrigin(Record):
    """The parameter that gave a number its value: what a user would change. `is_set` if `--set` gave the value."""

    param: str
    value: int
    is_set: bool

    def __str__(self) -> str:
        return f"from --set {self.param}={self.value}" if self.is_set else f"the default of {self.param}"


class SplitIndex(Record):
    """One index of one `split`: the dimension, the operators that the statement names, and the dimension classes that
    it cut."""

    dim: Word
    index: str
    operators: frozenset[str]
    classes: frozenset[int]


class NamedPart(Record):
    """A part of an index that a statement names for some operators, which all get `what` it says of them."""

    index: str
    part: int
    operators: frozenset[str]
    what: Hashable
    span: Span  # of what the statement selects


class Uncut(Record):
    """Operators that one index of a `split ... where possible` does not cut: its parts do not divide what is left of
    their dimension. `pieces` are their chunks, and `total` is the sum of their sizes, if these were given."""

    span: Span
    dim: str
    size: int
    index: str
    count: int
    pieces: int
    total: int | None
    origin: NumberOrigin | None
    operators: tuple[str, ...]


class Choice(Record):
    """What has a number in each turn of the loops around it: a branch of an `either`, or a param in a loop. `numbers`
    are those that a search tries, `own` is what it has without, `turns` what the loop is about in each turn."""

    numbers: tuple[int, ...]
    own: int
    span: Span
    turns: tuple[frozenset[str], ...] = ()


@dataclass(slots=True)
class Facts:
    """Facts are added, never taken back or replaced; only an index of queries may get their keys (`set_index`). The
    files in `statements/` add them, and at the end `neighbours/place_beside.py` the places of operators that they leave
    out.

    An operator's record has all of its indices, also those of one part, which cut nothing: so `model[tp = none]` means
    the same for every number of parts.
    """

    operators: Records
    params: dict[str, int] = field(default_factory=dict)  # the values in force
    domains: dict[str, tuple[int, ...]] = field(default_factory=dict)  # the numbers that a sweep tries
    meshes: dict[str, Mesh] = field(default_factory=dict)
    later: Mapping[str, str] = field(default_factory=dict)  # the meshes on which an earlier reading put operators
    axis_origins: dict[tuple[str, str], NumberOrigin] = field(
        default_factory=dict
    )  # of the sizes of axes, by mesh and axis
    cut_origins: dict[Span, NumberOrigin] = field(
        default_factory=dict
    )  # of the numbers of parts, by the span of the cut
    aliases: dict[str, frozenset[int]] = field(
        default_factory=dict
    )  # names of `dim`, with their dimension classes; none if the statement failed
    halved: bool = False  # whether a skipped order names halves of a backward
    skipped: ByIdentity[Statement, None] = field(default_factory=ByIdentity)  # statements that were looked at for this
    orders: list[Order] = field(default_factory=list)
    clocks: list[ClockOrder] = field(default_factory=list)
    pairs: Counter[Span] = field(default_factory=Counter)  # the number of pairs that each `order` relates
    named: Counter[Span] = field(default_factory=Counter)  # in how many turns a row of `order by clock` names tasks
    selected: Counter[tuple[Span, str]] = field(
        default_factory=Counter
    )  # how often a statement about items selects some
    past_last: dict[tuple[Span, str, int], frozenset[int]] = field(
        default_factory=dict
    )  # parts that orders name and that do not exist, by the order or the call, the index and its number of parts
    before_first: set[Span] = field(default_factory=set)  # orders and calls that name parts before the first one
    sets: dict[frozenset[str], int] = field(default_factory=dict)  # the sets of operators that orders name, numbered
    checkpoints: dict[str, int] = field(default_factory=dict)  # how many each layer has
    units: dict[tuple[str, int], frozenset[str]] = field(
        default_factory=dict
    )  # the operators of checkpoints, by their layers and numbers
    regions: list[frozenset[str]] = field(default_factory=list)  # what runs again as a whole, around checkpoints
    again: dict[tuple[Span, int], str] = field(
        default_factory=dict
    )  # the numbers of the sets whose second forward an order names, each with its place, and the plan's words for it
    shards: list[StateShard] = field(default_factory=list)
    prefetched: list[WeightsMark] = field(default_factory=list)
    buckets: list[WeightsMark] = field(default_factory=list)
    kept: list[Keep] = field(default_factory=list)
    on_host: list[OnHost] = field(default_factory=list)
    precisions: list[Precision] = field(default_factory=list)
    compressions: list[Compression] = field(default_factory=list)
    cuts: list[SplitIndex] = field(default_factory=list)
    uncut: list[Uncut] = field(default_factory=list)
    warnings: list[Diagnostic] = field(default_factory=list)  # about operators that a statement names in vain
    named_parts: list[NamedPart] = field(default_factory=list)  # which the next reading finds as operators
    of_all_parts: set[str] = field(default_factory=set)  # operators of which a statement named a part that they lack
    choices: dict[str, Choice] = field(default_factory=dict)  # by name: an `either`, or a param in a loop
    broken: set[str] = field(default_factory=set)  # indices and axes of statements that failed: no second complaint
    _counts: dict[tuple[frozenset[str], str], int] = field(default_factory=dict, repr=False)
    _runs: dict[tuple[frozenset[str], str], tuple[PartRun, ...]] = field(default_factory=dict, repr=False)
    _among: dict[tuple[frozenset[str], PartRun], frozenset[str]] = field(default_factory=dict, repr=False)

    def copy(self) -> "Facts":
        """A copy of the facts, to which others may be added without changing this one."""
        return Facts(*(copy(getattr(self, f.name)) for f in fields(self)))  # the data of these does not change

    def of(self, operator: str) -> OpPlan:
        """The record of an operator; `NOTHING` if no statement spoke of it."""
        return self.operators.at[self.operators.numbers[operator]] or NOTHING

    def numbers(self, operators: Iterable[str]) -> list[int]:
        """The positions of operators in the graph."""
        return [*map(self.operators.numbers.__getitem__, operators)]

    def revise(self, numbers: Iterable[int], change: Callable[[OpPlan], OpPlan]) -> None:
        """Changes the records of operators. Operators that share a record share the new one."""
        records, numbers = self.operators.at, [*numbers]
        for record, places in places_of(map(records.__getitem__, numbers)):
            new = change(record or NOTHING)
            for place in places:
                records[numbers[place]] = new

    def distinct(self, numbers: Iterable[int]) -> dict[int, OpPlan]:
        """The distinct records of these operators, each under the first operator that has it."""
        numbers = [*numbers]
        alike = places_of(map(self.operators.at.__getitem__, numbers))
        return {numbers[first]: record or NOTHING for record, (first, *_) in alike}

    def add_index(self, numbers: Iterable[int], index: Index) -> None:
        """Adds an index to operators, inside of those that they have; those that cut `within` others stay innermost."""

        def changed(record: OpPlan) -> OpPlan:
            return replace(record, indices=tuple(sorted((*record.indices, index), key=lambda i: i.within)))

        self.revise(numbers, changed)
        self._counts.clear()
        self._runs.clear()

    def set_index(self, numbers: Iterable[int], index: Index) -> None:
        """Replaces the operators' index of this name, by one that cuts the keys beside the queries, too."""

        def changed(record: OpPlan) -> OpPlan:
            return replace(record, indices=tuple(index if i.name == index.name else i for i in record.indices))

        self.revise(numbers, changed)

    def leave_whole(self, numbers: Iterable[int], index: Index) -> None:
        """Notes an index that operators lack because they need all of the dimension, while others of the statement have
        it."""
        self.revise(numbers, lambda record: replace(record, whole=(*record.whole, index)))

    def number_of(self, operators: frozenset[str]) -> int:
        """The number of a set of operators that an order names; a new set gets the next number."""
        if operators not in self.sets:
            self.sets[operators] = number = len(self.sets)
            self.revise(self.numbers(operators), lambda record: replace(record, sets=record.sets | {number}))
        return self.sets[operators]

    def runs(self, operators: frozenset[str], name: str) -> tuple[PartRun, ...]:
        """The runs of parts of an index that these operators are, in order; none if its parts are not told apart, or no
        statement has cut by it yet."""
        key = (operators, name)
        if key not in self._runs:
            records = self.distinct(self.numbers(operators)).values()
            cut = (record for record in records if any(i.name == name for i in record.indices))
            found = {run for record in cut for run in record.parts if run.index == name}
            self._runs[key] = tuple(sorted(found, key=lambda run: run.first))
        return self._runs[key]

    def among(self, operators: frozenset[str], run: PartRun) -> frozenset[str]:
        """Those of the operators that are these parts."""
        key = (operators, run)
        if key not in self._among:
            self._among[key] = frozenset(name for name in operators if run in self.of(name).parts)
        return self._among[key]

    def index(self, operator: str, name: str) -> Index | None:
        """The index of this name that an operator has; None if it has none."""
        return next((i for i in self.of(operator).indices if i.name == name), None)

    def count(self, operators: frozenset[str], name: str) -> int:
        """The largest number of parts into which an index cuts any of these operators; zero if none has it. Where a
        plan names parts, operators may be some of them: all count."""
        if runs := self.runs(operators, name):
            return runs[0].total
        key = (operators, name)
        if key not in self._counts:
            records = self.distinct(self.numbers(operators)).values()
            self._counts[key] = max(
                (i.devices for record in records for i in record.indices if i.name == name), default=0
            )
        return self._counts[key]

    def ordered(self) -> Iterator[tuple[Span, TaskSet]]:
        """The task sets of all orders and clocks, each with the place that names it."""
        for order in self.orders:
            yield from ((order.span, order.before), (order.span, order.after))
        for clock in self.clocks:
            yield from ((row.span, row.tasks) for row in clock.rows)

    def axes(self) -> Iterator[tuple[Mesh, str, int]]:
        """All axes of all meshes."""
        for mesh in self.meshes.values():
            for name, size in mesh.axes:
                yield mesh, name, size


def index_names(facts: Facts, model: ModelIndex, operators: frozenset[str]) -> tuple[str, ...]:
    """The names of the indices that these operators have, in the order of the graph."""
    return tuple(dict.fromkeys(i.name for op in model.ordered(operators) for i in facts.of(op.name).indices))
