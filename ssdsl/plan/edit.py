"""`Edit`: changes the graph of a plan together with the records of its operators.

Operators and values have names, so an operator may be changed or copied several times, in any order. The plan that
`done` returns has its operators in an order in which they can run, records in the order of the graph, and a place in
memory for each value: results of a copy, or of an operator that still calls the same kernel, lie in memory as those of
the original; all other new results have memory of their own.

>>> from tests.lower.by_hand import described, graph_of, plan_of
>>> graph = graph_of('''
...     weight w[batch]
...     mask[batch] = relu w[batch]
...     y[batch] = add w[batch] mask[batch]
... ''', batch=8)
>>> edit = Edit(plan_of(graph, {"dp": 2}, {"batch": "dp 2"}))
>>> edit.copy("mask", readers=["y"])
'mask_copy2'
>>> edit.cut("mask_copy2", ())
>>> print(described(edit.done()))
mask = relu w on gpus (batch 8 by dp)
mask_copy2 = relu w on gpus
y = add w mask_copy2 on gpus (batch 8 by dp)
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from ssdsl.model.graph import Dim, Graph, Operand, Operator, Origin, Value, renamed
from ssdsl.model.memory.storage import Storage, aliases, local_strides, strides_in
from ssdsl.plan.plan import NOTHING, Index, OpPlan, Plan
from ssdsl.record import Record, replace

Parts = Mapping[int, int]  # by the class of a dimension that is divided: the size of the first of the two factors


class Numbers(Record):
    """The dtype of a value's numbers, and whether they have a gradient."""

    dtype: str
    differentiable: bool = False

    @staticmethod
    def of(value: Value) -> "Numbers":
        """Those of another value."""
        return Numbers(value.dtype, value.differentiable)


@dataclass(slots=True)
class Edit:
    """A plan that is being changed: its operators, their records, the values and the names of classes of dimensions, as
    they are so far.

    `alike` has, for each operator whose results lie in memory as those of an operator of the plan's graph, that
    operator. `before` and `behind` are the operators that were inserted next to an operator, in order.
    """

    plan: Plan
    operators: dict[str, Operator] = field(init=False)
    records: dict[str, OpPlan] = field(init=False)
    values: dict[str, Value] = field(init=False)
    dim_names: dict[int, str] = field(init=False)
    alike: dict[str, Operator] = field(init=False)
    dropped: set[str] = field(default_factory=set)
    before: dict[str, list[str]] = field(default_factory=dict)
    behind: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.graph
        self.operators, self.records, self.values = dict(graph.by_name), dict(self.plan.operators), dict(graph.values)
        self.dim_names, self.alike = dict(graph.dim_names), dict(graph.by_name)

    @property
    def graph(self) -> Graph:
        """The graph before all changes."""
        return self.plan.graph

    # -- names and records -------------------------------------------------------------------------------------------

    def free(self, name: str) -> str:
        """The name, or with a number behind it if a value or an operator has that name already."""
        found, count = name, 1
        while found in self.values or found in self.operators:
            count += 1
            found = f"{name}_{count}"
        return found

    def new_class(self, name: str) -> int:
        """The number of a further class of dimensions, of this name."""
        number = 1 + max([*self.dim_names, *(d.cls for o in self.operators.values() for d in o.dims)], default=0)
        self.dim_names[number] = name
        return number

    def of(self, operator: str) -> OpPlan:
        """The record of an operator as it is so far."""
        return self.records.get(operator, NOTHING)

    def cut(self, operator: str, indices: Iterable[Index]) -> None:
        """Gives an operator other indices."""
        self.records[operator] = replace(self.of(operator), indices=tuple(indices))

    # -- operators ---------------------------------------------------------------------------------------------------

    def insert(
        self,
        operator: Operator,
        record: OpPlan | None,
        *numbers: Numbers,
        beside: str,
        before: bool = False,
        like: str | None = None,
    ) -> None:
        """Inserts an operator behind, or before, the one that is named by `beside` and all that was inserted there
        earlier. `numbers` are those of its results; one that has the name of a value takes its place. Results lie in
        memory as those of `like`, if it is given."""
        assert operator.name not in self.operators
        (self.before if before else self.behind).setdefault(beside, []).append(operator.name)
        self.operators[operator.name] = operator
        if record is not None:
            self.records[operator.name] = record
        for operand, each in zip(operator.outputs, numbers, strict=True):
            self.values[operand.value] = _value(operator, operand, each)
        if like in self.alike:
            self.alike[operator.name] = self.alike[like]

    def replace(self, operator: Operator) -> None:
        """Replaces the operator of this name. Its results have the kinds of numbers of the earlier ones, and the sizes
        of its dimensions."""
        earlier = self.operators[operator.name]
        if operator.target != earlier.target:
            self.alike.pop(operator.name, None)
        self.operators[operator.name] = replace(operator, signature=None)
        for before, operand in zip(earlier.outputs, operator.outputs, strict=True):
            self.values[operand.value] = _value(operator, operand, Numbers.of(self.values[before.value]))

    def copy(self, name: str, readers: Iterable[str]) -> str:
        """Inserts a copy of an operator behind it, with the same record, and returns its name. These `readers` read the
        results of the copy, others those of the original."""
        operator, number = self.operators[name], 2 + len(self.behind.get(name, ()))
        names = {o.value: self.free(f"{o.value}_copy{number}") for o in operator.outputs}
        outputs = tuple(replace(o, value=names[o.value]) for o in operator.outputs)
        copy = replace(operator, name=self.free(f"{name}_copy{number}"), outputs=outputs)
        numbers = (Numbers.of(self.values[old]) for old in names)
        self.insert(copy, self.records.get(name), *numbers, beside=name, like=name)
        self.values |= {new: replace(self.values[old], name=new) for old, new in names.items()}
        for reader in readers:
            self.read(reader, names)
        return copy.name

    def drop(self, name: str) -> None:
        """Leaves an operator out. Others make its results, or nothing reads them."""
        self.dropped.add(name)

    def read(self, reader: str, names: Mapping[str, str]) -> None:
        """Makes an operator read other values: `names` maps the earlier ones to those."""
        self.operators[reader] = renamed(self.operators[reader], names)

    # -- dimensions --------------------------------------------------------------------------------------------------

    def divide(self, parts: Parts) -> None:
        """Divides classes of dimensions in two, everywhere: `batch` of size 8 with 2 parts becomes `batch` of size 2
        and, inside of it, `batch` of size 4. Indices of a divided dimension cut the first of the two."""
        pairs = {cls: (self.new_class(self.dim_names[cls]), self.new_class(self.dim_names[cls])) for cls in parts}
        for name, operator in list(self.operators.items()):
            numbers = _numbers(operator, parts)
            if len(numbers) == sum(map(len, numbers)):
                continue
            self.operators[name] = _divided(operator, numbers, parts, pairs)
            if (record := self.records.get(name)) is not None:
                indices, whole = (tuple(_moved(of, numbers)) for of in (record.indices, record.whole))
                self.records[name] = replace(record, indices=indices, whole=whole)
        for name, value in self.values.items():
            self.values[name] = _divided_value(value, parts, pairs)

    # -- the result --------------------------------------------------------------------------------------------------

    def done(self) -> Plan:
        """The plan about the changed graph."""
        names = (name for name in self._ordered(self.graph.by_name) if name not in self.dropped)
        operators = tuple(self.operators[name] for name in names)
        made = {o.value for operator in operators for o in operator.outputs}
        values = {
            n: v for n, v in self.values.items() if v.origin is not Origin.OPERATOR or n in made or n == self.graph.loss
        }
        graph = replace(
            self.graph,
            operators=operators,
            values=values,
            dim_names=self.dim_names,
            storages=self._storages(operators, values),
        )
        records = {o.name: self.records[o.name] for o in operators if o.name in self.records}
        return replace(self.plan, graph=graph, operators=records)

    def _ordered(self, names: Iterable[str]) -> Iterator[str]:
        """These operators, and those that were inserted next to them."""
        for name in names:
            yield from self._ordered(self.before.get(name, ()))
            yield name
            yield from self._ordered(self.behind.get(name, ()))

    def _storages(self, operators: Iterable[Operator], values: Mapping[str, Value]) -> dict[str, Storage]:
        """The memory of each value, also of views of values that lie elsewhere now."""
        found = {name: storage for name, storage in self.graph.storages.items() if name in values}
        changed = set[str]()
        for operator in operators:
            source = self.alike.get(operator.name)
            if source is operator and changed.isdisjoint([o.value for o in operator.inputs]):
                continue
            changed.update(o.value for o in operator.outputs)
            if source is None:
                shapes = {o.value: values[o.value].shape for o in operator.outputs}
                found |= {name: Storage(name, strides_in(range(len(s)), s)) for name, s in shapes.items()}
            else:
                found |= self._laid_as(source, operator, found)
        return found

    def _laid_as(self, source: Operator, operator: Operator, so_far: Mapping[str, Storage]) -> dict[str, Storage]:
        """The memory of an operator's results, as that of `source` before the changes: strides in the same order, and
        views of an operand stay views of it."""
        reads = {old.value: new.value for old, new in zip(source.inputs, operator.inputs, strict=True)}
        views, found = aliases(source, self.graph.storages), {}
        for old, new in zip(source.outputs, operator.outputs, strict=True):
            storage, shape = self.graph.storages[old.value], self.graph.values[old.value].shape
            root = so_far[reads[views[old.value]]].root if old.value in views else new.value
            found[new.value] = Storage(root, local_strides(shape, storage.strides, self.values[new.value].shape))
        return found


def _value(operator: Operator, operand: Operand, numbers: Numbers) -> Value:
    """The value that an operator makes as this operand."""
    sizes = tuple(tuple(operator.dims[d].size for d in axis) for axis in operand.axes)
    factors = tuple(tuple(operator.dims[d].cls for d in axis) for axis in operand.axes)
    shape = tuple(map(prod, sizes))
    return Value(operand.value, Origin.OPERATOR, shape, numbers.dtype, numbers.differentiable, factors, sizes)


# -- divided dimensions ------------------------------------------------------------------------------------------------


def _numbers(operator: Operator, parts: Parts) -> list[tuple[int, ...]]:
    """The new numbers of each dimension of an operator: two for one that is divided."""
    found: list[tuple[int, ...]] = []
    for dim in operator.dims:
        first = sum(map(len, found))
        found.append((first, first + 1) if dim.cls in parts else (first,))
    return found


def _moved(indices: Iterable[Index], numbers: list[tuple[int, ...]]) -> Iterator[Index]:
    """Indices for dimensions with other numbers; the first of two."""
    for index in indices:
        yield replace(index, dim=numbers[index.dim][0], also=None if index.also is None else numbers[index.also][0])


def _divided(
    operator: Operator, numbers: list[tuple[int, ...]], parts: Parts, pairs: Mapping[int, tuple[int, int]]
) -> Operator:
    def operands(of: tuple[Operand, ...]) -> tuple[Operand, ...]:
        return tuple(replace(o, axes=tuple(tuple(n for d in axis for n in numbers[d]) for axis in o.axes)) for o in of)

    dims: list[Dim] = []
    for dim in operator.dims:
        if dim.window is not None:
            dim = replace(dim, window=replace(dim.window, of=numbers[dim.window.of][0]))
        if dim.beside is not None:
            dim = replace(dim, beside=numbers[dim.beside][0])
        if dim.cls not in parts:
            dims.append(dim)
            continue
        count, (first, second) = parts[dim.cls], pairs[dim.cls]
        dims += [replace(dim, size=count, cls=first), replace(dim, size=dim.size // count, cls=second)]
    inputs, outputs = operands(operator.inputs), operands(operator.outputs)
    return replace(operator, inputs=inputs, outputs=outputs, dims=tuple(dims), signature=None)  # now unlike others


def _divided_value(value: Value, parts: Parts, pairs: Mapping[int, tuple[int, int]]) -> Value:
    factors = tuple(tuple(n for c in axis for n in pairs.get(c, (c,))) for axis in value.factors)
    sizes = tuple(
        tuple(n for c, size in zip(*axis, strict=True) for n in _in_two(size, parts.get(c)))
        for axis in zip(value.factors, value.sizes, strict=True)
    )
    return replace(value, factors=factors, sizes=sizes)


def _in_two(size: int, parts: int | None) -> tuple[int, ...]:
    return (size,) if parts is None else (parts, size // parts)
