"""Copies the operators that repeat a constant (`Graph.repeated`), so that readers in several places have their own."""

from collections import ChainMap
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ssdsl.model.graph import Graph, Operator, Value, rename_refs
from ssdsl.model.memory.storage import Storage, laid_again
from ssdsl.record import Record, replace

KEPT = 8  # graphs with copies that a graph remembers: plans of one search differ little in who reads where


class Copy(Record):
    """An operator that repeats a constant for the readers in one place, among them `host`. It is a copy of `source`,
    or that operator itself."""

    name: str
    source: str
    host: str


class Copied(Record):
    """A graph with copies; the readers of each one come before it in `copies`."""

    graph: Graph
    copies: tuple[Copy, ...]


def copy_repeated(graph: Graph, moving: Collection[str], homes: Mapping[str, int]) -> Copied:
    """The graph with a copy of each operator of `moving` for each place that reads it. `homes` has the number of the
    place of each other operator that reads them. The same places give the same object."""
    key = frozenset(moving), tuple(homes.items())
    if (found := graph.copied.get(key)) is None:
        while len(graph.copied) >= KEPT:
            graph.copied.pop(next(iter(graph.copied)))
        found = graph.copied[key] = _Copying(graph, moving, dict(homes)).copied()
    return found


@dataclass(slots=True)
class _Copying:
    """Walks the operators from the last to the first, so that the readers of an operator have been copied before it.

    `operators` has the operators so far, each as often as it runs, by name; `readers` the names of those that read a
    value of a moving operator, from the last to the first; `homes` the places of operators that have been visited.
    """

    source: Graph
    moving: Collection[str]
    homes: dict[str, int]
    operators: dict[str, Operator] = field(default_factory=dict)
    readers: dict[str, list[str]] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)
    moved: frozenset[str] = field(init=False)  # the values that moving operators make
    values: dict[str, Value] = field(init=False)
    storages: dict[str, Storage] = field(init=False)

    def __post_init__(self) -> None:
        self.moved = frozenset(o.value for name in self.moving for o in self.source.by_name[name].outputs)
        self.values, self.storages = dict(self.source.values), dict(self.source.storages)

    def copied(self) -> Copied:
        """The graph with all copies."""
        for operator in reversed(self.source.operators):
            if operator.name in self.moving:
                self._copy(operator)
            else:
                self._add(operator)
        operators, sources = tuple(reversed(self.operators.values())), {c.name: c.source for c in self.copies}
        for operator in operators:
            self._lay(self.source.by_name[sources.get(operator.name, operator.name)], operator)
        graph = replace(self.source, operators=operators, values=self.values, storages=self.storages)
        return Copied(graph, tuple(self.copies))

    def _copy(self, operator: Operator) -> None:
        """Adds the operator once for each place in which it is read; the first of them keeps its name."""
        places: dict[int, list[str]] = {}
        for name in reversed([n for o in operator.outputs for n in self.readers.get(o.value, ())]):
            places.setdefault(self.homes[name], []).append(name)
        copies: list[Operator] = []
        for place, readers in places.items():
            copy = self._renamed(operator, len(copies) + 1) if copies else operator
            for name in readers if copies else ():
                self._reads(name, operator, copy)
            self.homes[copy.name] = place
            self.copies.append(Copy(copy.name, operator.name, readers[0]))
            copies.append(copy)
        for copy in reversed(copies or [operator]):
            self._add(copy)

    def _add(self, operator: Operator) -> None:
        self.operators[operator.name] = operator
        for value in self.moved.intersection([o.value for o in operator.inputs]):
            self.readers.setdefault(value, []).append(operator.name)

    def _renamed(self, operator: Operator, number: int) -> Operator:
        """The operator under a further name, with results of their own."""
        names = {o.value: _free(f"{o.value}_copy{number}", self.values) for o in operator.outputs}
        self.values |= {new: replace(self.values[old], name=new) for old, new in names.items()}
        outputs = tuple(replace(o, value=names[o.value]) for o in operator.outputs)
        name = _free(f"{operator.name}_copy{number}", ChainMap(self.source.by_name, self.operators))
        return replace(operator, name=name, outputs=outputs)

    def _reads(self, name: str, operator: Operator, copy: Operator) -> None:
        """Makes an operator read the results of a copy."""
        names = {o.value: new.value for o, new in zip(operator.outputs, copy.outputs, strict=True)}
        reader = self.operators[name]
        self.operators[name] = replace(
            reader,
            args=rename_refs(reader.args, names),
            kwargs=rename_refs(reader.kwargs, names),
            inputs=tuple(replace(o, value=names.get(o.value, o.value)) for o in reader.inputs),
        )

    def _lay(self, source: Operator, operator: Operator) -> None:
        """Sets the memory of a changed operator's results: views of an operand stay views of it."""
        if source is operator:
            return
        reads, made = (
            {old.value: new.value for old, new in zip(before, now, strict=True)}
            for before, now in ((source.inputs, operator.inputs), (source.outputs, operator.outputs))
        )
        self.storages |= laid_again(source, self.source, self.values, self.storages, reads, made)


def _free(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name
