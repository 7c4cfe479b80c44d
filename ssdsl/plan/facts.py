"""What the statements of a plan have said so far."""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field, fields

from ssdsl.lang.nodes import Word
from ssdsl.plan.model_index import ModelIndex
from ssdsl.plan.plan import Clock, Index, Mesh, Order, Placement, Recompute, Shard
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
    operators: tuple[str, ...]
    classes: frozenset[int]


@dataclass(slots=True)
class Facts:
    """Facts are added, and never taken back or replaced. Only the files in `statements/` add them.

    `indices[op]` are all indices of an operator in the order in which they cut, also those of one part, which cut
    nothing: the operator has them, so that `model[tp = none]` means the same whatever the number of parts.
    """

    params: dict[str, int] = field(default_factory=dict)  # the values in force
    meshes: dict[str, Mesh] = field(default_factory=dict)
    axis_origins: dict[tuple[str, str], Origin] = field(default_factory=dict)  # of the sizes of axes, by mesh and axis
    cut_origins: dict[Span, Origin] = field(default_factory=dict)  # of the numbers of parts, by the span of the cut
    indices: dict[str, tuple[Index, ...]] = field(default_factory=dict)
    aliases: dict[str, frozenset[int]] = field(default_factory=dict)  # names of `dim`, with their dimension classes
    placements: dict[str, Placement] = field(default_factory=dict)
    orders: list[Order] = field(default_factory=list)
    clocks: list[Clock] = field(default_factory=list)
    pairs: dict[Span, int] = field(default_factory=dict)  # how many each `order` relates
    named: dict[Span, int] = field(default_factory=dict)  # in how many turns each row of `order by clock` names tasks
    recomputes: list[Recompute] = field(default_factory=list)
    regathered: dict[str, Span] = field(default_factory=dict)  # operators for which backward gathers again
    prefetched: dict[str, tuple[int, Span]] = field(default_factory=dict)  # by operator, and where it is said
    shards: list[Shard] = field(default_factory=list)
    whole: dict[str, tuple[Index, ...]] = field(default_factory=dict)  # that a `split` names and operators cannot have
    cuts: list[Cut] = field(default_factory=list)
    warnings: list[Diagnostic] = field(default_factory=list)  # of what a statement names and cannot have
    broken: set[str] = field(default_factory=set)  # indices and axes of statements that failed: no second complaint
    _counts: dict[tuple[frozenset[str], str], int] = field(default_factory=dict, repr=False)

    def copy(self) -> "Facts":
        """The same facts, to which others may be added apart."""
        return Facts(*(copy(getattr(self, f.name)) for f in fields(self)))  # what they hold does not change

    def add_index(self, operator: str, index: Index) -> None:
        """A further index of an operator, inside of those that it has."""
        self.indices[operator] = (*self.indices.get(operator, ()), index)
        self._counts.clear()

    def set_index(self, operator: str, index: Index) -> None:
        """An index of an operator in place of the one with its name."""
        self.indices[operator] = tuple(index if i.name == index.name else i for i in self.indices[operator])

    def leave_whole(self, operator: str, index: Index) -> None:
        """An operator that needs all of a dimension, which other operators of a statement are split by."""
        self.whole[operator] = (*self.whole.get(operator, ()), index)

    def index(self, operator: str, name: str) -> Index | None:
        """The index of this name that an operator has."""
        return next((i for i in self.indices.get(operator, ()) if i.name == name), None)

    def count(self, operators: frozenset[str], name: str) -> int:
        """Into how many parts these operators are cut by an index, at most; zero if none has it."""
        key = (operators, name)
        if key not in self._counts:
            found = (self.index(operator, name) for operator in operators)
            self._counts[key] = max((index.count for index in found if index), default=0)
        return self._counts[key]

    def axes(self) -> Iterator[tuple[Mesh, str, int]]:
        """All axes of all meshes."""
        for mesh in self.meshes.values():
            for name, size in mesh.axes:
                yield mesh, name, size


def index_names(facts: Facts, model: ModelIndex, operators: frozenset[str]) -> tuple[str, ...]:
    """The names of the indices that these operators have, in the order of the graph."""
    return tuple(dict.fromkeys(i.name for op in model.ordered(operators) for i in facts.indices.get(op.name, ())))
