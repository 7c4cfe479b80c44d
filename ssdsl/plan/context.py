"""What the interpretation of one plan knows: the model, the facts said so far, and how far it may still go."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssdsl.lang.nodes import Node
from ssdsl.model.graph import Graph, Operator, Stage
from ssdsl.plan.errors.names import TooManySteps
from ssdsl.plan.plan import Clock, Index, Mesh, Order, Placement, Recompute, Shard
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Span

MOST_STEPS = 100_000


@dataclass(slots=True)
class Context:
    """Facts only grow. `whole[op]` are the indices of count one: they cut nothing, and the operator has them."""

    graph: Graph
    overrides: dict[str, int]
    folder: Path | None
    execute: Callable[..., Any]  # of a block of statements: what a call of a function does

    params: dict[str, int] = field(default_factory=dict)
    origins: dict[tuple[str, str], Any] = field(default_factory=dict)  # of the sizes of axes, by mesh and axis
    meshes: dict[str, Mesh] = field(default_factory=dict)
    indices: dict[str, list[Index]] = field(default_factory=dict)
    whole: dict[str, dict[str, Index]] = field(default_factory=dict)
    aliases: dict[str, set[int]] = field(default_factory=dict)
    placements: dict[str, Placement] = field(default_factory=dict)
    orders: list[Order] = field(default_factory=list)
    clocks: list[Clock] = field(default_factory=list)
    related: dict[Span, int] = field(default_factory=dict)
    recomputes: list[Recompute] = field(default_factory=list)
    shards: list[Shard] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)  # indices and axes of statements that failed

    steps: int = 0
    calls: dict[int, Node] = field(default_factory=dict)  # those under way, by identity
    sites: list[Span] = field(default_factory=list)  # where they stand, the outermost first
    files: list[Path] = field(default_factory=list)
    libraries: dict[Path, Any] = field(default_factory=dict)

    operators: dict[str, Operator] = field(default_factory=dict)
    rank: dict[str, int] = field(default_factory=dict)
    compute: frozenset[str] = frozenset()
    compute_rank: dict[str, int] = field(default_factory=dict)
    computing: dict[frozenset[str], frozenset[str]] = field(default_factory=dict)
    counts: dict[tuple[frozenset[str], str], int] = field(default_factory=dict)
    paths: dict[str, frozenset[str]] = field(default_factory=dict)
    matches: dict[str, tuple[frozenset[str], ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.operators = {op.name: op for op in self.graph.operators}
        self.rank = {name: i for i, name in enumerate(self.operators)}
        self.compute = frozenset(op.name for op in self.graph.operators if op.stage is Stage.COMPUTE)
        self.compute_rank = {name: i for i, name in enumerate(n for n in self.operators if n in self.compute)}
        by_path: dict[str, list[str]] = {}
        for op in self.graph.operators:
            by_path.setdefault(op.path, []).append(op.name)
        self.paths = {path: frozenset(names) for path, names in by_path.items()}

    def step(self, node: Node, steps: int = 1) -> None:
        """Count the work; raises PlanError when it is more than any plan needs."""
        self.steps += steps
        if self.steps > MOST_STEPS:
            raise PlanError(TooManySteps(node.span, f"{MOST_STEPS:,}"))

    def ordered(self, names: Iterable[str]) -> list[Operator]:
        """Operators in the order of the graph."""
        return [self.operators[name] for name in sorted(names, key=self.rank.__getitem__)]

    def only_compute(self, names: frozenset[str]) -> frozenset[str]:
        """Those of them that are placed: the same set object for the same set."""
        if names not in self.computing:
            self.computing[names] = names if names <= self.compute else names & self.compute
        return self.computing[names]

    def count(self, names: frozenset[str], index: str) -> int:
        """Into how many parts these operators are cut by an index, at most; zero if none has it."""
        key = (names, index)
        if key not in self.counts:
            self.counts[key] = max((self.count_of(name, index) for name in names), default=0)
        return self.counts[key]

    def count_of(self, name: str, index: str) -> int:
        if index in self.whole.get(name, ()):
            return 1
        return next((i.count for i in self.indices.get(name, ()) if i.name == index), 0)

    def indices_of(self, names: frozenset[str]) -> list[str]:
        """The names of the indices that these operators have."""
        found: dict[str, None] = {}
        for op in self.ordered(names):
            found.update(
                dict.fromkeys([*self.whole.get(op.name, ()), *(i.name for i in self.indices.get(op.name, ()))])
            )
        return list(found)

    def axes(self) -> Iterator[tuple[Mesh, str, int]]:
        """All axes of all meshes."""
        for mesh in self.meshes.values():
            for name, size in mesh.axes:
                yield mesh, name, size
