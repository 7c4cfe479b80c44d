"""Look-up tables of a model for plans: its operators in order, those that a plan places, and its modules."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

from ssdsl.model.alter.altered import Altered
from ssdsl.model.dims.layers import layers_by_path
from ssdsl.model.graph import Graph, Operator, Stage
from ssdsl.plan.paths import match_paths
from ssdsl.plan.plan import PartRun
from ssdsl.record import Record

ROUTED = "ssdsl::routed_mm"

Units = tuple[frozenset[str], ...]
Stages = int | tuple[int, ...]  # how many of equal shares, or the share of each in least whole numbers
Places = list[tuple[Operator, int]]  # operators, each with the number of a dimension
NamedDim = tuple[str, int]  # a dimension's name and class


class DimPlaces(Record):
    """The operators with a dimension: in the order of the graph (`places`); in groups that a plan may cut alike (the
    number of the dimension, then the operators' numbers); and the classes of the dimension."""

    places: Places
    groups: tuple[tuple[int, tuple[int, ...]], ...]
    classes: frozenset[int]


@dataclass(frozen=True)
class ModelIndex:
    """A graph with its look-up tables. `places`, `balanced`, `matches`, `repeated` and the functions of sets only cache
    answers: the same set gives the same object, so that later look-ups are cheap."""

    graph: Graph
    operators: dict[str, Operator]
    position: dict[str, int]  # of each operator in the graph
    compute: frozenset[str]  # those that a plan places; the others run wherever their consumers are
    compute_position: dict[str, int]  # the position of each among these
    paths: dict[str, frozenset[str]]  # the operators that each module itself calls
    calls: dict[str, int]  # a number for each operator: equal for those that a plan may cut alike
    parts: Mapping[str, tuple[PartRun, ...]] = field(
        default_factory=dict
    )  # of operators that are parts which a plan names
    separated: dict[Hashable, "ModelIndex"] = field(default_factory=dict, repr=False)  # with further parts
    altered: Altered | None = None  # if a plan changes the model
    lossless: bool = False  # compressions then keep all numbers: their operators are there, and change nothing
    altered_as: dict[Hashable, "ModelIndex"] = field(default_factory=dict, repr=False)  # with such changes
    places: dict[Hashable, DimPlaces] = field(default_factory=dict, repr=False)  # of dimensions, by operators and name
    balanced: dict[tuple[frozenset[str], Stages], Units] = field(default_factory=dict, repr=False)  # of `balance`
    matches: dict[str, Units] = field(default_factory=dict, repr=False)  # of patterns that were matched
    repeated: dict[frozenset[str], Units] = field(default_factory=dict, repr=False)  # runs that `recompute` asked for

    def ordered(self, names: Iterable[str]) -> Sequence[Operator]:
        """Operators in the order of the graph."""
        return self._ordered(frozenset(names))

    @cached_property
    def _ordered(self) -> Callable[[frozenset[str]], Sequence[Operator]]:
        return cache(lambda names: [self.graph.operators[number] for number in self.numbers(names)])

    @cached_property
    def numbers(self) -> Callable[[frozenset[str]], Sequence[int]]:
        """The numbers of operators in the graph, in its order."""
        return cache(lambda names: sorted(map(self.position.__getitem__, names)))

    @cached_property
    def only_compute(self) -> Callable[[frozenset[str]], frozenset[str]]:
        """Keeps, of some operators, those that a plan places."""
        return cache(lambda names: names if names <= self.compute else names & self.compute)

    @cached_property
    def varying(self) -> Callable[[frozenset[str]], frozenset[str]]:
        """Keeps, of some operators, those that are not constant: every device that reads a constant computes it."""
        constant = {op.name for op in self.graph.operators if op.stage is Stage.CONSTANT}
        return cache(lambda names: names if constant.isdisjoint(names) else names - constant)

    @cached_property
    def named(self) -> dict[str, tuple[PartRun, ...]]:
        """The runs of parts that a plan names, in order, by index."""
        runs = sorted({run for parts in self.parts.values() for run in parts}, key=lambda run: run.first)
        return {name: tuple(run for run in runs if run.index == name) for name in dict.fromkeys(r.index for r in runs)}

    @cached_property
    def added(self) -> frozenset[str]:
        """The operators that a change of the model has added."""
        return frozenset() if self.altered is None else frozenset(o.name for o in self.altered.added)

    @cached_property
    def layers(self) -> dict[str, str]:
        """The layer of each module, by its path."""
        return layers_by_path(self.graph)

    @cached_property
    def dims(self) -> list[tuple[NamedDim, ...]]:
        """The dimensions of each operator, by its number; equal ones are one object."""
        same: dict[tuple[NamedDim, ...], tuple[NamedDim, ...]] = {}
        every = [tuple([(d.name, d.cls) for d in op.dims]) for op in self.graph.operators]
        return [same.setdefault(dims, dims) for dims in every]

    @cached_property
    def tokens(self) -> frozenset[int]:
        """The classes of the outermost dimension of rows that name their expert."""
        products = (op for op in self.graph.operators if op.target == ROUTED)
        return frozenset(op.dims[op.inputs[0].axes[0][0]].cls for op in products)

    def dim_places(self, places: Places) -> DimPlaces:
        """The table of these operators with a dimension, with the groups of operators that a plan may cut alike."""
        groups: dict[tuple[int, int], list[int]] = {}
        for op, at in places:
            groups.setdefault((self.calls[op.name], at), []).append(self.position[op.name])
        classes = frozenset(op.dims[at].cls for op, at in places)
        return DimPlaces(places, tuple((at, tuple(those)) for (_, at), those in groups.items()), classes)

    def match(self, pattern: str) -> Units:
        """The operators beneath each module that a pattern such as `h.*` names."""
        if pattern not in self.matches:
            self.matches[pattern] = match_paths(self.paths, pattern)
        return self.matches[pattern]


def index_model(
    graph: Graph,
    parts: Mapping[str, tuple[PartRun, ...]] | None = None,
    altered: Altered | None = None,
    lossless: bool = False,
) -> ModelIndex:
    """The look-up tables of a graph, of which some operators are `parts`; `altered` says what a plan changes of it."""
    parts = parts or {}
    compute = [op.name for op in graph.operators if op.stage is Stage.COMPUTE]
    by_path: dict[str, list[str]] = {}
    for op in graph.operators:
        by_path.setdefault(op.path, []).append(op.name)
    return ModelIndex(
        graph=graph,
        operators={op.name: op for op in graph.operators},
        position={op.name: i for i, op in enumerate(graph.operators)},
        compute=frozenset(compute),
        compute_position={name: i for i, name in enumerate(compute)},
        paths={path: frozenset(names) for path, names in by_path.items()},
        calls=_calls(graph, parts),
        parts=parts,
        altered=altered,
        lossless=lossless,
    )


def _calls(graph: Graph, parts: Mapping[str, tuple[PartRun, ...]]) -> dict[str, int]:
    """A number for each operator, found once for operators of one signature with the same windowed dimensions."""
    calls, known, windowed = dict[Hashable, int](), dict[Hashable, int](), graph.windowed
    found: dict[str, int] = {}
    for op in graph.operators:
        key = op.name if op.signature is None else (op.signature, *[d.cls in windowed for d in op.dims if windowed])
        if (number := known.get(key)) is None:
            call = _call(op, windowed), parts.get(op.name)
            number = known[key] = calls.setdefault(call, len(calls))
        found[op.name] = number
    return found


def _call(op: Operator, windowed: frozenset[int]) -> Hashable:
    """A key of an operator: equal for operators between which a plan can tell no difference but in their names."""
    dims = tuple((d.size, d.fixed, d.combined, d.beside, d.cls in windowed) for d in op.dims)
    statistics = tuple(o.value in op.statistics for o in op.inputs) if op.statistics else ()
    return op.kind, op.stage, dims, tuple(o.axes for o in op.inputs), statistics
