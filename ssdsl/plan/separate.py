"""Separates parts that a plan names: `assign stage[way = 0] to ...` makes operators of their own of these parts.

An index in time has one operator for all of its parts. Where a statement gives some parts a place, a cut or a
checkpoint of their own, the operators with this index are copied: a copy for each *run* of parts that the plan treats
alike. A copy reads slices of what has no copies, and what others read of copies is joined again: parts of a dimension
one behind the other, addends of a sum as their sum. But addends of the loss stay apart, with copies of the linear
operators behind them: no part waits for the others' forward. Operators without the index that only copies need, such as
an embedding of positions, are computed beside each of them.

    y = linear x w          y_m0 = linear x[0:2] w       y_m1 = linear x[2:8] w
    loss = sum y            loss_m0 = sum y_m0           loss_m1 = sum y_m1

The plan is then read for this graph, in which all statements speak of whole operators again.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Any

from ssdsl.model.dims.window import Moved
from ssdsl.model.graph import DimWindow, Operand, Operator, Ref, Stage, dims_of, replace_refs, stage_of
from ssdsl.model.ops.reader import kernel_dims, parameters
from ssdsl.model.ops.rows import ROWS
from ssdsl.model.target import SchemaParameter, Target
from ssdsl.plan.edit import Edit, Numbers
from ssdsl.plan.errors.select import Inseparable
from ssdsl.plan.facts import Facts, NamedPart
from ssdsl.plan.model_index import ModelIndex, index_model
from ssdsl.plan.plan import Index, PartRun, Plan
from ssdsl.plan.regions import Run, merged
from ssdsl.record import Record, replace
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Span

ADD = Target("aten::add.Tensor", (SchemaParameter("self"), SchemaParameter("other")), is_pointwise=True)
CAT = Target("aten::cat", (SchemaParameter("tensors"), SchemaParameter("dim", 0, optional=True)))
SLICE = Target(
    "aten::slice.Tensor",
    (
        SchemaParameter("self"),
        SchemaParameter("dim", 0, optional=True),
        SchemaParameter("start", None, optional=True),
        SchemaParameter("end", None, optional=True),
        SchemaParameter("step", 1, optional=True),
    ),
)
WHOLE = "parts that a plan names are joined"
MOST_KEPT = 8  # graphs with copies, of the last plans for a model
Place = tuple[int, int]  # the axis of a tensor that carries a dimension, and the number of its factor there


class Copied(Record):
    """An operator that has the index, with the positions of each run along the dimension that the index cuts."""

    index: Index
    runs: tuple[Run, ...]


class Pieces(Record):
    """What copies make in place of a value, run by run: parts along the dimension at a `place`, or addends if that is
    None."""

    names: tuple[str, ...]
    place: Place | None
    runs: tuple[Run, ...]


def copied(operator: Operator, index: Index, outside: Iterable[Index], runs: Iterable[PartRun], named: Span) -> Copied:
    """How an operator is copied for runs of parts. `outside` are its indices around this one, `named` is where a
    statement names a part. Raises PlanError if it cannot be: its parts must be runs of an axis, and of whole
    results."""
    dim = operator.dims[index.dim]
    around = next((i.name for i in outside if i.dim == index.dim and i.devices > 1), None)
    windowed = any(d.window is not None and d.window.of == index.dim for d in operator.dims)
    inside = any(
        at is not None and at[1] for at in (_place(o, index.dim) for o in (*operator.inputs, *operator.outputs))
    )
    joined = index.also is not None or index.of_axis is not None or dim.beside is not None
    if around is not None or windowed or inside or joined:
        raise PlanError(Inseparable(named, index.name, operator.module, around))
    parts = index.digit.regions(dim.size) if index.digit.at is not None else _equal(dim.size, index.digit.parts)
    found = []
    for run in runs:
        positions = merged(r for part in parts[run.first : run.end] for r in part)
        if len(positions) != 1:
            raise PlanError(Inseparable(named, index.name, operator.module, None))
        found.append(positions[0])
    return Copied(index, tuple(found))


def may_be_copied(operator: Operator, index: Index) -> bool:
    """Whether parts along the index are operators like the whole: not where a kernel combines the parts, or one of them
    adds what the others must not; such an operator runs once for all."""
    kernel = operator.row.kernel
    dim = operator.dims[index.dim]
    is_merged = kernel is not None and index.dim in kernel_dims(operator, *kernel.axes)
    adds_once = operator.summed(index.dim) and any(o.once for o in operator.inputs)
    return not (dim.fixed or dim.combined or is_merged or adds_once or operator.statistics)


def _equal(size: int, parts: int) -> tuple[tuple[Run, ...], ...]:
    each = size // parts
    return tuple(((k * each, (k + 1) * each),) for k in range(parts))


def separated(model: ModelIndex, facts: Facts) -> ModelIndex:
    """The model in which parts that statements name are operators: those of one index, the outermost of those that are
    named. Raises PlanError where they cannot be told apart."""
    first, runs = _runs(model, facts)
    copies: dict[str, Copied] = {}
    beside: set[str] = set()
    selected = frozenset[str]().union(*(n.operators for n in facts.named_parts if n.index == first.index))
    for operator in (o for o in model.graph.operators if o.stage is not Stage.CONSTANT):
        index = facts.index(operator.name, first.index)
        if index is not None and index.devices > 1 and may_be_copied(operator, index):
            indices = facts.of(operator.name).indices
            copies[operator.name] = copied(operator, index, indices[: indices.index(index)], runs, first.span)
        elif operator.name in selected and index is None and operator.stage is Stage.COMPUTE:
            makers = (maker.name for _, maker, _ in model.graph.sources[operator.name])
            if all(maker in beside for maker in makers) and model.graph.results.isdisjoint(
                o.value for o in operator.outputs
            ):
                beside.add(operator.name)
    key = first.index, runs, tuple(copies.items()), frozenset(beside)
    if key not in model.separated:
        if len(model.separated) == MOST_KEPT:
            model.separated.clear()
        separation = Separation(Edit(Plan(model.graph, (), {}, {})), first.index, runs, copies, beside)
        graph = separation.done().graph
        parts = dict(model.parts)
        for name, made in separation.made.items():
            parts |= {copy: (*model.parts.get(name, ()), run) for copy, run in zip(made, runs, strict=False)}
        parts = {o.name: parts[o.name] for o in graph.operators if o.name in parts}
        model.separated[key] = index_model(graph, parts, model.altered)
    return model.separated[key]


def _runs(model: ModelIndex, facts: Facts) -> tuple[NamedPart, tuple[PartRun, ...]]:
    """The first part that is named of the outermost index, and the runs of parts that statements treat alike. Parts
    along an axis of a mesh are one for each of its devices, and so are parts that are not in order."""
    depth: dict[str, int] = {}
    for named in facts.named_parts:
        depth.setdefault(named.index, max(_depth(facts, name, named.index) for name in named.operators))
    first = min(facts.named_parts, key=lambda named: depth[named.index])
    index = next(i for op in model.ordered(first.operators) if (i := facts.index(op.name, first.index)) is not None)
    said: dict[int, set[tuple[frozenset[str], Hashable]]] = {}
    for named in (n for n in facts.named_parts if n.index == first.index):
        said.setdefault(named.part, set()).add((named.operators, named.what))
    apart = any(axis == first.index for _, axis, _ in facts.axes()) or not index.digit.are_runs
    runs: list[PartRun] = []
    for part in range(index.devices):
        if part and not apart and said.get(part) == said.get(part - 1):
            runs[-1] = replace(runs[-1], count=runs[-1].count + 1)
        else:
            runs.append(PartRun(first.index, part, 1, index.devices))
    return first, tuple(runs)


def _depth(facts: Facts, operator: str, index: str) -> int:
    """How many indices of an operator are outside of one."""
    names = [i.name for i in facts.of(operator).indices]
    return names.index(index) if index in names else 0


@dataclass(slots=True)
class Separation:
    """Copies the operators of an index, and those `beside` them that do not have it. `pieces` are the values that
    copies have made so far, `same` those that each run has whole, `slices` the parts of other values that copies read,
    `classes` those of the shorter dimensions."""

    edit: Edit
    name: str
    runs: tuple[PartRun, ...]
    copies: Mapping[str, Copied]
    beside: Collection[str]
    same: dict[str, tuple[str, ...]] = field(default_factory=dict)
    made: dict[str, list[str]] = field(default_factory=dict)  # the copies of each operator, run by run
    pieces: dict[str, Pieces] = field(default_factory=dict)
    joined: set[str] = field(default_factory=set)
    slices: dict[tuple[str, Place, Run], str] = field(default_factory=dict)
    classes: dict[tuple[int, Run], int] = field(default_factory=dict)
    sliced: set[str] = field(default_factory=set)
    alike: dict[Hashable, int] = field(default_factory=dict)  # the signatures of copies
    first: int = 0  # of these signatures: no operator of the graph has it

    def __post_init__(self) -> None:
        known = (o.signature for o in self.edit.graph.operators)
        self.first = 1 + max((number for number in known if number is not None), default=-1)

    def done(self) -> Plan:
        """The plan about the graph with the copies."""
        graph = self.edit.graph
        for operator in graph.operators:
            if operator.name in self.copies:
                self._copy(operator, self.copies[operator.name])
            elif operator.name in self.beside:
                self._repeat(operator)
            elif operator.name not in graph.tails.linear or not self._add_apart(operator):
                for operand in operator.inputs:
                    self._whole(operand.value)
        for value in (*graph.updates.values(), *graph.outputs.values()):
            self._whole(value)
        addends = [self._addends(loss) for loss in graph.losses]
        self._drop_unread()
        plan = self.edit.done()
        inserted = graph.inserted | {o.name for o in plan.graph.operators} - graph.by_name.keys() - self._copies()
        losses = tuple(name for names in addends for name in names)
        return replace(plan, graph=replace(plan.graph, addends=losses, inserted=inserted))

    def _copies(self) -> set[str]:
        return {name for names in self.made.values() for name in names}

    def _drop_unread(self) -> None:
        """Leaves out what was computed beside copies that do not read it, such as a penalty that one of them adds."""
        edit = self.edit
        kept = {name: o for name, o in edit.operators.items() if name not in edit.dropped}
        reads = Counter(operand.value for o in kept.values() for operand in o.inputs)
        for name in reversed(self.edit.graph.by_name):
            for copy in self.made.get(name, [])[1:] if name in self.beside else ():
                if not any(reads[o.value] for o in kept[copy].outputs):
                    edit.drop(copy)
                    reads.subtract(operand.value for operand in kept[copy].inputs)

    def _addends(self, loss: str) -> tuple[str, ...]:
        """The values whose sum a value is."""
        return self.pieces[loss].names if loss in self.pieces and loss not in self.joined else (loss,)

    # -- copies ------------------------------------------------------------------------------------------------------

    def _copy(self, operator: Operator, how: Copied) -> None:
        """Puts the copies of an operator in its place."""
        dim = how.index.dim
        places = [_place(o, dim) for o in operator.inputs]
        made = []
        for number, (run, positions) in enumerate(zip(self.runs, how.runs, strict=True)):
            reads = [
                self._of_all(o.value, number) if at is None else self._part(operator, n, at, run, positions)
                for n, (o, at) in enumerate(zip(operator.inputs, places, strict=True))
            ]
            made.append(self._insert(operator, run, reads, self._facts_of(operator, dim, positions, reads)))
        for operand, names in zip(operator.outputs, zip(*made, strict=True), strict=True):
            self.pieces[operand.value] = Pieces(names, _place(operand, dim), how.runs)
        self.edit.drop(operator.name)

    def _insert(
        self, operator: Operator, run: PartRun, reads: list[str], facts: Mapping[str, Any] = MappingProxyType({})
    ) -> list[str]:
        """Inserts a copy that reads these values and has these `facts` of its own; the names of its results."""
        edit, suffix = self.edit, run.word
        makes = [edit.free(f"{o.value}_{suffix}") for o in operator.outputs]
        names = iter(reads)
        args, kwargs = replace_refs((operator.args, operator.kwargs), lambda _: Ref(next(names)))
        copy = replace(
            operator,
            name=edit.free(f"{operator.name}_{suffix}"),
            args=args,
            kwargs=kwargs,
            inputs=tuple(replace(o, value=name) for o, name in zip(operator.inputs, reads, strict=True)),
            outputs=tuple(replace(o, value=name) for o, name in zip(operator.outputs, makes, strict=True)),
            **facts,
        )
        numbers = (Numbers.of(edit.values[o.value]) for o in operator.outputs)
        edit.insert(copy, None, *numbers, beside=operator.name, like=operator.name)
        self.made.setdefault(operator.name, []).append(copy.name)
        return makes

    def _facts_of(self, operator: Operator, dim: int, run: Run, reads: list[str]) -> dict[str, Any]:
        """The facts of a copy that computes a run of positions. Equal calls that read alike have equal copies."""
        own, size = operator.dims[dim], run[1] - run[0]
        key = operator.signature, dim, run, *[read in self.edit.graph.values or read in self.sliced for read in reads]
        shorter = replace(own, size=size, cls=self._class_of(own.cls, run))
        return {
            "dims": (*operator.dims[:dim], shorter, *operator.dims[dim + 1 :]),
            "flops": operator.flops * size // own.size,
            "signature": None
            if operator.signature is None
            else self.alike.setdefault(key, self.first + len(self.alike)),
        }

    def _add_apart(self, operator: Operator) -> bool:
        """Copies a linear operator of sums, so that each copy has an addend of its result. A term that is no sum of
        copies is added by the first. False if it is not linear in these sums alone."""
        reads = [o.value for o in operator.inputs]
        sums = {r for r in reads if r in self.pieces and r not in self.joined and self.pieces[r].place is None}
        if not sums:
            return False
        given = [*zip(parameters(operator), reads, strict=True)]
        sets = [{read for name, read in given if name in words.split()} for words in operator.row.linear_in]
        linear = next((among for among in sets if among and among <= sums), None)
        joins = operator.target == "aten::add.Tensor" and not operator.kwargs and len(operator.args) == 3
        if len(operator.outputs) != 1 or (linear is None and not joins):
            return False
        sums = sums if linear is None else linear
        names: list[str] = []
        for number, run in enumerate(self.runs):
            if number and linear is None:  # of an addend and a term that is whole
                names += [self.pieces[r].names[number] for r in reads if r in sums]
            else:
                own = [self.pieces[r].names[number] if r in sums else self._of_all(r, number) for r in reads]
                names += self._insert(operator, run, own, {"signature": None})
        self.pieces[operator.outputs[0].value] = Pieces(tuple(names), None, ())
        self.edit.drop(operator.name)
        return True

    def _repeat(self, operator: Operator) -> None:
        """Copies an operator that each run needs as it is: the first has the operator itself."""
        self.made[operator.name] = [operator.name]
        made = [[o.value for o in operator.outputs]]
        for number, run in enumerate(self.runs[1:], 1):
            made.append(self._insert(operator, run, [self._of_all(o.value, number) for o in operator.inputs]))
        for operand, names in zip(operator.outputs, zip(*made, strict=True), strict=True):
            self.same[operand.value] = names

    def _of_all(self, value: str, number: int) -> str:
        """The name of a whole value that a run reads."""
        return self.same[value][number] if value in self.same else self._whole(value)

    def _class_of(self, cls: int, run: Run) -> int:
        if (cls, run) not in self.classes:
            self.classes[cls, run] = self.edit.new_class(self.edit.dim_names[cls])
        return self.classes[cls, run]

    # -- what copies read ----------------------------------------------------------------------------------------------

    def _part(self, reader: Operator, number: int, place: Place, part: PartRun, run: Run) -> str:
        """The name of a part of an operand, which has a run of positions."""
        value = reader.inputs[number].value
        known = self.pieces.get(value)
        if known is not None and known.place == place and run in known.runs:
            return known.names[known.runs.index(run)]
        if (value, place, run) not in self.slices:
            made = self.slices[value, place, run] = self._slice(reader, number, self._whole(value), place, part, run)
            self.sliced.add(made)
        return self.slices[value, place, run]

    def _slice(self, reader: Operator, number: int, name: str, place: Place, part: PartRun, run: Run) -> str:
        """Inserts a slice of a value in front of its first reader."""
        edit, (axis, _) = self.edit, place
        value, made = edit.values[name], edit.free(f"{name}_{part.word}")
        dims, axes = dims_of(reader, reader.inputs[number])
        cut = axes[axis][0]
        whole, inner = dims[cut], prod(dims[d].size for d in axes[axis][1:])
        window = DimWindow(cut, Moved(whole.size, before=-run[0])) if len(axes[axis]) == 1 else None
        source = replace(whole, name=f"{whole.name}.whole", fixed=WHOLE, window=window)
        fixed = "" if window is not None else WHOLE
        dims[cut] = replace(whole, size=run[1] - run[0], cls=self._class_of(whole.cls, run), fixed=fixed)
        read = tuple((len(dims), *a[1:]) if n == axis else a for n, a in enumerate(axes))
        stage = stage_of(edit.values[name], edit.graph.makers.get(name))
        args = (SLICE, Ref(name), axis, run[0] * inner, run[1] * inner)
        inputs = () if stage is Stage.CONSTANT else (Operand(name, read),)
        form = "slice", SLICE.name, reader.path if stage is Stage.COMPUTE else "", reader.source, stage
        operator = Operator(made, *form, args, (), inputs, (Operand(made, axes),), (*dims, source), ROWS["aten::slice"])
        edit.insert(operator, None, Numbers.of(value), beside=reader.name, before=True)
        return made

    # -- what others read ----------------------------------------------------------------------------------------------

    def _whole(self, value: str) -> str:
        """The name of a value, which is joined of its pieces if copies make it."""
        if value in self.pieces and value not in self.joined:
            self.joined.add(value)
            maker = self.edit.graph.makers[value]
            pieces = self.pieces[value]
            if pieces.place is None:
                self._sum(maker, value, pieces.names)
            else:
                self._join(maker, value, pieces, pieces.place[0])
        return value

    def _sum(self, maker: Operator, value: str, addends: tuple[str, ...]) -> None:
        """Adds the pieces of a value."""
        edit, known = self.edit, self.edit.values[value]
        dims, axes = dims_of(maker, _operand(maker, value))
        total = addends[0]
        for number, addend in enumerate(addends[1:], 2):
            is_last = number == len(addends)
            made = value if is_last else edit.free(f"{value}_sum{number}")
            form = edit.free(f"{value}_sum"), "add", "aten::add.Tensor", maker.path, maker.source, maker.stage
            inputs = Operand(total, axes), Operand(addend, axes)
            args = (ADD, Ref(total), Ref(addend))
            operator = Operator(
                *form, args, (), inputs, (Operand(made, axes),), tuple(dims), ROWS["aten::add"], prod(known.shape)
            )
            edit.insert(operator, None, Numbers.of(known), beside=maker.name)
            total = made

    def _join(self, maker: Operator, value: str, pieces: Pieces, axis: int) -> None:
        """Joins the pieces of a value, in the order of their positions."""
        edit, known = self.edit, self.edit.values[value]
        dims, axes = dims_of(maker, _operand(maker, value))
        cut = axes[axis][0]
        dims[cut] = replace(dims[cut], fixed=WHOLE)
        inputs, names = [], []
        for run, name in sorted(zip(pieces.runs, pieces.names, strict=True)):
            own = replace(dims[cut], size=run[1] - run[0], cls=self._class_of(dims[cut].cls, run))
            inputs.append(Operand(name, tuple((len(dims), *a[1:]) if n == axis else a for n, a in enumerate(axes))))
            names.append(name)
            dims.append(own)
        form = edit.free(f"{value}_joined"), "cat", "aten::cat", maker.path, maker.source, maker.stage
        args = (CAT, tuple(map(Ref, names)), axis)
        operator = Operator(*form, args, (), tuple(inputs), (Operand(value, axes),), tuple(dims), ROWS["aten::cat"], 0)
        edit.insert(operator, None, Numbers.of(known), beside=maker.name)


def _place(operand: Operand, dim: int) -> Place | None:
    """The axis of an operand that carries a dimension, and the number of its factor there; None if none does."""
    return next(((n, axis.index(dim)) for n, axis in enumerate(operand.axes) if dim in axis), None)


def _operand(maker: Operator, value: str) -> Operand:
    """The operand as which an operator makes a value."""
    return next(o for o in maker.outputs if o.value == value)
