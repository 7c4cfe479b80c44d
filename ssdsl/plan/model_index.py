"""Look-up tables of a model for plans: its operators in order, those that a plan places, and its modules."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from ssdsl.model.graph import Graph, Operator, Stage
from ssdsl.plan.eval.paths import match_paths

Units = tuple[frozenset[str], ...]
Stages = int | tuple[int, ...]  # how many of equal shares, or the share of each in least whole numbers
Places = list[tuple[Operator, int]]  # operators, each with the number of a dimension


@dataclass(frozen=True, slots=True)
class DimPlaces:
    """The operators with a dimension: in the order of the graph (`places`); in groups that a plan may cut alike (the
    number of the dimension, then the operators' numbers); and the classes of the dimension."""

    places: Places
    groups: tuple[tuple[int, tuple[int, ...]], ...]
    classes: frozenset[int]


@dataclass(frozen=True, slots=True)
class ModelIndex:
    """A graph with its look-up tables. `places`, `balanced` and the underscored fields only cache answers."""

    graph: Graph
    operators: dict[str, Operator]
    position: dict[str, int]  # of each operator in the graph
    compute: frozenset[str]  # those that a plan places; the others run wherever their consumers are
    compute_position: dict[str, int]  # the position of each among these
    paths: dict[str, frozenset[str]]  # the operators that each module itself calls
    calls: dict[str, int]  # a number for each operator: equal for those that a plan may cut alike
    places: dict[Hashable, DimPlaces] = field(default_factory=dict, repr=False)  # of dimensions, by operators and name
    balanced: dict[tuple[frozenset[str], Stages], Units] = field(default_factory=dict, repr=False)
    _ordered: dict[frozenset[str], list[Operator]] = field(default_factory=dict, repr=False)
    _numbers: dict[frozenset[str], list[int]] = field(default_factory=dict, repr=False)
    _computing: dict[frozenset[str], frozenset[str]] = field(default_factory=dict, repr=False)
    _varying: dict[frozenset[str], frozenset[str]] = field(default_factory=dict, repr=False)
    _matches: dict[str, Units] = field(default_factory=dict, repr=False)

    def ordered(self, names: Iterable[str]) -> Sequence[Operator]:
        """Operators in the order of the graph."""
        if isinstance(names, frozenset) and names in self._ordered:
            return self._ordered[names]
        found = [self.operators[name] for name in sorted(names, key=self.position.__getitem__)]
        if isinstance(names, frozenset):
            self._ordered[names] = found
        return found

    def only_compute(self, names: frozenset[str]) -> frozenset[str]:
        """The operators that are placed. Returns the same object for the same set, so that later look-ups are cheap."""
        if names not in self._computing:
            self._computing[names] = names if names <= self.compute else names & self.compute
        return self._computing[names]

    def numbers(self, names: frozenset[str]) -> Sequence[int]:
        """The numbers of operators in the graph, in its order."""
        if names not in self._numbers:
            self._numbers[names] = sorted(map(self.position.__getitem__, names))
        return self._numbers[names]

    def varying(self, names: frozenset[str]) -> frozenset[str]:
        """The operators that are not constant. (Constants are on every device.) Returns the same object for the same
        set."""
        if names not in self._varying:
            constant = {name for name in names if self.operators[name].stage is Stage.CONSTANT}
            self._varying[names] = names - constant if constant else names
        return self._varying[names]

    def found(self, places: Places) -> DimPlaces:
        """The table of operators with a dimension, in groups."""
        groups: dict[tuple[int, int], list[int]] = {}
        for op, at in places:
            groups.setdefault((self.calls[op.name], at), []).append(self.position[op.name])
        classes = frozenset(op.dims[at].cls for op, at in places)
        return DimPlaces(places, tuple((at, tuple(those)) for (_, at), those in groups.items()), classes)

    def has_matched(self, pattern: str) -> bool:
        """Whether a pattern was matched before, so that it costs nothing now."""
        return pattern in self._matches

    def match(self, pattern: str) -> Units:
        """The operators beneath each module that a pattern such as `h.*` names."""
        if pattern not in self._matches:
            self._matches[pattern] = match_paths(self.paths, pattern)
        return self._matches[pattern]


def index_model(graph: Graph) -> ModelIndex:
    """The look-up tables of a graph."""
    compute = [op.name for op in graph.operators if op.stage is Stage.COMPUTE]
    by_path: dict[str, list[str]] = {}
    for op in graph.operators:
        by_path.setdefault(op.path, []).append(op.name)
    calls: dict[Hashable, int] = {}
    return ModelIndex(
        graph=graph,
        operators={op.name: op for op in graph.operators},
        position={op.name: i for i, op in enumerate(graph.operators)},
        compute=frozenset(compute),
        compute_position={name: i for i, name in enumerate(compute)},
        paths={path: frozenset(names) for path, names in by_path.items()},
        calls={op.name: calls.setdefault(_call(op, graph.windowed), len(calls)) for op in graph.operators},
    )


def _call(op: Operator, windowed: frozenset[int]) -> Hashable:
    """A key of an operator: equal for operators between which a plan can tell no difference but in their names."""
    dims = tuple((d.size, d.fixed, d.combined, d.beside, d.cls in windowed) for d in op.dims)
    statistics = tuple(o.value in op.statistics for o in op.inputs) if op.statistics else ()
    return op.kind, op.stage, dims, tuple(o.axes for o in op.inputs), statistics
