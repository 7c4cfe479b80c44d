"""What the statements of a plan have said so far."""

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field, fields, replace

from ssdsl.lang.nodes import Word
from ssdsl.plan.model_index import ModelIndex
from ssdsl.plan.plan import NOTHING, Clock, Index, Mesh, OpPlan, Order, Shard
from ssdsl.plan.records import Records
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Span


@dataclass(frozen=True, slots=True)
class Origin:
    """The parameter that a number is: what a user would change. `is_set` if `--set` gave it its value."""

    param: str
    value: int
    is_set: bool

    def __str__(self) -> str:
        return f"from --set {self.param}={self.value}" if self.is_set else f"the default of {self.param}"


@dataclass(frozen=True, slots=True)
class Cut:
    """What one `split` said of one index: the dimension, the operators that it names, and the classes that it cut."""

    dim: Word
    index: str
    operators: frozenset[str]
    classes: frozenset[int]


@dataclass(slots=True)
class Facts:
    """Facts are added, and never taken back or replaced. Only the files in `statements/` add them.

    An operator's record has all of its indices, also those of one part, which cut nothing: the operator has them, so
    that `model[tp = none]` means the same whatever the number of parts.
    """

    operators: Records
    params: dict[str, int] = field(default_factory=dict)  # the values in force
    domains: dict[str, tuple[int, ...]] = field(default_factory=dict)  # what of params is tried; of most, nothing
    meshes: dict[str, Mesh] = field(default_factory=dict)
    axis_origins: dict[tuple[str, str], Origin] = field(default_factory=dict)  # of the sizes of axes, by mesh and axis
    cut_origins: dict[Span, Origin] = field(default_factory=dict)  # of the numbers of parts, by the span of the cut
    aliases: dict[str, frozenset[int]] = field(default_factory=dict)  # names of `dim`, with their dimension classes
    halved: bool = False  # whether an order that was left out names halves of a backward
    orders: list[Order] = field(default_factory=list)
    clocks: list[Clock] = field(default_factory=list)
    pairs: dict[Span, int] = field(default_factory=dict)  # how many each `order` relates
    named: dict[Span, int] = field(default_factory=dict)  # in how many turns each row of `order by clock` names tasks
    sets: dict[frozenset[str], int] = field(default_factory=dict)  # of operators that orders name, with their numbers
    checkpoints: int = 0  # how many there are
    shards: list[Shard] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    warnings: list[Diagnostic] = field(default_factory=list)  # of what a statement names and cannot have
    broken: set[str] = field(default_factory=set)  # indices and axes of statements that failed: no second complaint
    _counts: dict[tuple[frozenset[str], str], int] = field(default_factory=dict, repr=False)

    def copy(self) -> "Facts":
        """The same facts, to which others may be added apart."""
        return Facts(*(copy(getattr(self, f.name)) for f in fields(self)))  # what they hold does not change

    def of(self, operator: str) -> OpPlan:
        """What was said of an operator."""
        return self.operators.at[self.operators.numbers[operator]] or NOTHING

    def numbers(self, operators: Iterable[str]) -> list[int]:
        """The numbers of operators in the graph."""
        return [*map(self.operators.numbers.__getitem__, operators)]

    def revise(self, numbers: Iterable[int], change: Callable[[OpPlan], OpPlan]) -> None:
        """Changes the records of operators. Those that share one share the new one."""
        records, changed = self.operators.at, dict[int, tuple[OpPlan | None, OpPlan]]()
        for number in numbers:
            record = records[number]
            if (new := changed.get(id(record))) is None:
                new = changed[id(record)] = record, change(record or NOTHING)
            records[number] = new[1]

    def distinct(self, numbers: Iterable[int]) -> dict[int, OpPlan]:
        """The records of operators, each once: by the first that has it."""
        first: dict[int, int] = {}
        records = self.operators.at
        for number in numbers:
            first.setdefault(id(records[number]), number)
        return {number: records[number] or NOTHING for number in first.values()}

    def add_index(self, numbers: Iterable[int], index: Index) -> None:
        """A further index of operators, inside of those that they have."""
        self.revise(numbers, lambda record: replace(record, indices=(*record.indices, index)))
        self._counts.clear()

    def set_index(self, numbers: Iterable[int], index: Index) -> None:
        """An index of operators in place of the one with its name."""

        def changed(record: OpPlan) -> OpPlan:
            return replace(record, indices=tuple(index if i.name == index.name else i for i in record.indices))

        self.revise(numbers, changed)

    def leave_whole(self, numbers: Iterable[int], index: Index) -> None:
        """Operators that need all of a dimension, which others of a statement are split by."""
        self.revise(numbers, lambda record: replace(record, whole=(*record.whole, index)))

    def number_of(self, operators: frozenset[str]) -> int:
        """The number of a set of operators that an order names."""
        if operators not in self.sets:
            self.sets[operators] = number = len(self.sets)
            self.revise(self.numbers(operators), lambda record: replace(record, sets=record.sets | {number}))
        return self.sets[operators]

    def index(self, operator: str, name: str) -> Index | None:
        """The index of this name that an operator has."""
        return next((i for i in self.of(operator).indices if i.name == name), None)

    def count(self, operators: frozenset[str], name: str) -> int:
        """Into how many parts these operators are cut by an index, at most; zero if none has it."""
        key = (operators, name)
        if key not in self._counts:
            records = self.distinct(self.numbers(operators)).values()
            self._counts[key] = max(
                (i.count for record in records for i in record.indices if i.name == name), default=0
            )
        return self._counts[key]

    def axes(self) -> Iterator[tuple[Mesh, str, int]]:
        """All axes of all meshes."""
        for mesh in self.meshes.values():
            for name, size in mesh.axes:
                yield mesh, name, size


def index_names(facts: Facts, model: ModelIndex, operators: frozenset[str]) -> tuple[str, ...]:
    """The names of the indices that these operators have, in the order of the graph."""
    return tuple(dict.fromkeys(i.name for op in model.ordered(operators) for i in facts.of(op.name).indices))
