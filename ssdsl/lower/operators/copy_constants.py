"""Copies operators that repeat a constant to the places of their readers, so that no message carries their results.

A mask that is repeated for every sample depends on nothing, but its whole result is as large as the batch. So it is not
a constant that is computed once and kept: each part repeats it for itself. If operators in several places read it, as
the stages of a pipeline do, each place has an operator of its own. It is cut as its first reader there is, and as the
plan cuts it itself. An operator that a plan assigns by itself stays there.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from ssdsl.lower.lowering import Lowering
from ssdsl.model.graph import Operator, Value, rename_refs
from ssdsl.model.memory.storage import Storage, laid_again
from ssdsl.plan.neighbours.beside import beside
from ssdsl.plan.plan import NOTHING, OpPlan, Placement, Plan


def copy_constants(lowering: Lowering) -> Lowering:
    """Replaces the plan by one in which repeated constants are computed where they are read."""
    plan = lowering.plan
    moving = {name for name in plan.graph.repeated if not plan.of(name).stays}
    if not any(_is_read_elsewhere(plan, name) for name in moving):
        return lowering
    return replace(lowering, plan=_Copying(plan, moving).plan())


def _is_read_elsewhere(plan: Plan, name: str) -> bool:
    home, readers = plan.of(name).home, plan.graph.readers
    outputs = plan.graph.by_name[name].outputs
    return any(plan.of(reader.name).home != home for o in outputs for reader in readers.get(o.value, ()))


@dataclass(slots=True)
class _Copying:
    """Walks the operators from the last to the first, so that the readers of an operator have been copied before it.

    `operators` has the operators so far, each as often as it runs, by name; `readers` the names of those that read a
    value, from the last to the first; `origins` what each copy is a copy of.
    """

    source: Plan
    moving: set[str]
    operators: dict[str, Operator] = field(default_factory=dict)
    readers: dict[str, list[str]] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    values: dict[str, Value] = field(init=False)
    storages: dict[str, Storage] = field(init=False)
    records: dict[str, OpPlan] = field(init=False)

    def __post_init__(self) -> None:
        graph = self.source.graph
        self.values, self.storages = dict(graph.values), dict(graph.storages)
        self.records = dict(self.source.operators)

    def plan(self) -> Plan:
        """The plan with the copies, and the same statements about them."""
        graph = self.source.graph
        results = {graph.loss, *graph.updates.values(), *graph.outputs.values()}
        for operator in reversed(graph.operators):
            if operator.name in self.moving and results.isdisjoint(o.value for o in operator.outputs):
                self._copy(operator)
            else:
                self._add(operator)
        operators = tuple(reversed(self.operators.values()))
        for operator in operators:
            self._lay(operator)
        changed = replace(graph, operators=operators, values=self.values, storages=self.storages)
        records = {o.name: self.records[o.name] for o in operators if o.name in self.records}
        return replace(self.source, graph=changed, operators=records)

    def _copy(self, operator: Operator) -> None:
        """Adds the operator once for each place in which it is read; the first of them keeps its name."""
        places: dict[Placement, list[str]] = {}
        for name in reversed([n for o in operator.outputs for n in self.readers.get(o.value, ())]):
            places.setdefault(self.records[name].home, []).append(name)
        record = self.source.of(operator.name)
        copies: list[Operator] = []
        for place, names in places.items():
            found = self._renamed(operator, len(copies) + 1) if copies else operator
            if place != record.home:
                self.records[found.name] = self._beside(names[0], operator, record)
            elif copies:
                self.records[found.name] = record
            if copies:
                for name in names:
                    self._reads(name, operator, found)
            copies.append(found)
        for found in reversed(copies or [operator]):
            self._add(found)

    def _add(self, operator: Operator) -> None:
        self.operators[operator.name] = operator
        for value in dict.fromkeys(reversed(operator.refs())):
            self.readers.setdefault(value, []).append(operator.name)

    def _renamed(self, operator: Operator, number: int) -> Operator:
        """The operator under a further name, with results of their own."""
        names = {o.value: self._free(f"{o.value}_copy{number}") for o in operator.outputs}
        self.values |= {new: replace(self.values[old], name=new) for old, new in names.items()}
        outputs = tuple(replace(o, value=names[o.value]) for o in operator.outputs)
        name = self._free(f"{operator.name}_copy{number}", {*self.source.graph.by_name, *self.operators})
        self.origins[name] = operator.name
        return replace(operator, name=name, outputs=outputs)

    def _free(self, name: str, taken: Collection[str] | None = None) -> str:
        while name in (self.values if taken is None else taken):
            name += "_"
        return name

    def _beside(self, host: str, operator: Operator, record: OpPlan) -> OpPlan:
        """The record of an operator in the place of its reader `host`. It keeps its own cuts where the place has the
        same axes."""
        there = self.records[host]
        is_alike = _axes(there.home) == _axes(record.home)
        own = OpPlan(indices=record.indices, whole=record.whole) if is_alike else NOTHING
        return beside(self.operators[host], there, operator, own, combines=False)

    def _reads(self, name: str, operator: Operator, copied: Operator) -> None:
        """Makes an operator read the results of a copy."""
        names = {o.value: new.value for o, new in zip(operator.outputs, copied.outputs, strict=True)}
        reader = self.operators[name]
        self.operators[name] = replace(
            reader,
            args=rename_refs(reader.args, names),
            kwargs=rename_refs(reader.kwargs, names),
            inputs=tuple(replace(o, value=names.get(o.value, o.value)) for o in reader.inputs),
        )

    def _lay(self, operator: Operator) -> None:
        """Sets the memory of a changed operator's results: views of an operand stay views of it."""
        graph = self.source.graph
        source = graph.by_name[self.origins.get(operator.name, operator.name)]
        if source is operator:
            return
        reads, made = (
            {old.value: new.value for old, new in zip(before, now, strict=True)}
            for before, now in ((source.inputs, operator.inputs), (source.outputs, operator.outputs))
        )
        self.storages |= laid_again(source, graph, self.values, self.storages, reads, made)


def _axes(place: Placement) -> tuple[str, list[str]]:
    """The mesh of a place, and the axes that it fixes."""
    return place.mesh, [axis for axis, _ in place.fixed]
