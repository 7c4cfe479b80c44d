"""The graph of a model: operators, the values between them, and the named dimensions of each operator.

A tensor's axis is a sequence of *factors*: the fused axis `[qkv · heads · head_dim]` of GPT-2 has three. An operator's
`dims` are the factors of its iteration space; its operands name, axis by axis, which of them they carry.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ssdsl.model.constant import Constant
from ssdsl.model.dims.inner_names import next_inside
from ssdsl.model.dims.window import Moved, Window
from ssdsl.model.memory.storage import Storage, aliases
from ssdsl.record import Record, replace
from ssdsl.runtime.program.returned import Leaf

if TYPE_CHECKING:
    from ssdsl.model.memory.observed import Observed
    from ssdsl.model.ops.op import Op
    from ssdsl.model.tails import Tails

ROOT = "."  # the path of what the model's own forward calls
Order = tuple[int, ...]  # of the axes of a tensor in memory: the outermost first


class Stage(StrEnum):
    """When and where an operator runs: this follows from what it depends on."""

    CONSTANT = "constant"  # on no input and no weight: computed once
    DATA = "data"  # on inputs only: computed once per step, wherever it is needed
    COMPUTE = "compute"  # on weights: placed by the plan


class DimWindow(Record):
    """A dimension of an input, windowed on dimension number `of` of the results."""

    of: int
    shape: Window


class Dim(Record):
    """One dimension of an operator.

    `fixed` is the reason why it cannot be split, or empty. `combined` marks a dimension whose split runs another kernel
    (a vocabulary-parallel cross entropy), which combines the parts itself. `cls` is the same number for all the
    dimensions, of any operator, that the analysis found to be the same. A dimension that no output carries is summed
    over (unless combined): split, it leaves partial sums. Along a dimension with a `window`, a part has the region that
    its results need. One index may cut a combined dimension together with the one that it is `beside`: keys with
    queries.
    """

    name: str
    size: int
    cls: int
    fixed: str = ""
    combined: bool = False
    window: DimWindow | None = None
    beside: int | None = None


class Operand(Record):
    """A tensor that an operator reads or makes, and for each of its axes the operator's `dims` that it is made of.

    An axis of size one is the empty sequence. `once` marks an addend (a bias): when the operator is split along a
    summed dimension, only the first part may add it.
    """

    value: str
    axes: tuple[tuple[int, ...], ...]
    once: bool = False

    def carries(self, dim: int) -> bool:
        return any(dim in axis for axis in self.axes)


class Ref(Record):
    """A tensor argument in `Operator.args`: the name of a value."""

    value: str


_NESTED = Ref, tuple, list  # arguments in which there may be tensors


def refs_in(item: Any) -> list[str]:
    """The names of the tensors in an argument, or in all arguments of a call, in order."""
    if isinstance(item, Ref):
        return [item.value]
    nested = [part for part in item if isinstance(part, _NESTED)] if isinstance(item, (tuple, list)) else ()
    return [name for part in nested for name in refs_in(part)]


def replace_refs(item: Any, by: Callable[[str], Any], leaf: Callable[[Any], Any] = lambda item: item) -> Any:
    """An argument, or all arguments of a call, with `by(name)` in place of each tensor; `leaf` maps all else.

    >>> replace_refs((Ref("x"), (Ref("y"), 1)), {"x": 2, "y": 3}.get)
    (2, (3, 1))
    """
    if isinstance(item, Ref):
        return by(item.value)
    if isinstance(item, (tuple, list)):
        return tuple([replace_refs(part, by, leaf) for part in item])
    if isinstance(item, dict):
        return {word: replace_refs(part, by, leaf) for word, part in item.items()}
    return leaf(item)


def rename_refs(item: Any, names: Mapping[str, str]) -> Any:
    """An argument, or all arguments of a call, that reads other values: `names` maps old to new."""
    return replace_refs(item, lambda name: Ref(names.get(name, name)))


def numbered(item: Any, numbers: Iterator[int]) -> Any:
    """Arguments whose references are numbers, so that equal calls of several layers are equal."""
    return replace_refs(item, lambda _: Ref(str(next(numbers))))


def changed_statistics(kind: str, args: tuple[Any, ...]) -> tuple[str, ...]:
    """The buffers that a normalised call changes in place: the running statistics of a batch norm in training."""
    if kind != "batch_norm" or args[5] is not True:
        return ()
    return tuple(a.value for a in args[3:5] if isinstance(a, Ref))


@dataclass(frozen=True, slots=True)
class Operator:
    """One call of the captured graph.

    `name` is unique in the graph; `kind` is what selections call it ("linear"), `target` torch's full name of it
    ("aten::linear", "aten::max.dim"), by which its row in the table of operators is found; `path` is the module path
    ("transformer.h.0.attn.c_attn", a later call of the same module "trunk#2.fc", empty for the root) and `source` the
    place in the model's code ("modeling_gpt2.py:123"). `args` begin with the overload that is called. `flops` counts
    the multiply-adds of the forward twice. `orders` has the memory order of each tensor in its arguments on one
    device, if the operator asks for it. `row` is the operator's entry in the table of operators, `observed` what torch
    showed of the call. `signature` is the same number for equal calls of a graph (`signatures.py`), and None for an
    operator that a plan has made of others.
    """

    name: str
    kind: str
    target: str
    path: str
    source: str
    stage: Stage
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    dims: tuple[Dim, ...]
    row: "Op" = field(repr=False, compare=False)
    flops: int = 0
    orders: tuple[Order, ...] = ()
    observed: "Observed | None" = field(default=None, repr=False, compare=False)
    signature: int | None = field(default=None, repr=False, compare=False)

    @property
    def module(self) -> str:
        """The path by which a plan selects it: `.` for what the model's own forward calls."""
        return self.path or ROOT

    @property
    def own_path(self) -> str:
        """The path that selects what its module calls, without what modules in it call: `h.0.`, `.` for the model."""
        return f"{self.path}." if self.path else ROOT

    @property
    def statistics(self) -> tuple[str, ...]:
        """The buffers that it changes in place."""
        return changed_statistics(self.kind, self.args[1:])

    @property
    def values(self) -> tuple[str, ...]:
        """The values that it reads, then those that it makes."""
        return tuple(o.value for o in (*self.inputs, *self.outputs))

    def refs(self) -> tuple[str, ...]:
        """The names of all tensors in its arguments, in order. A constant has them too, though it has no inputs."""
        return tuple(refs_in((*self.args, *(v for _, v in self.kwargs))))

    def follows_from(self, values: set[str] | frozenset[str]) -> bool:
        """Whether all that it reads is among these values."""
        return values.issuperset([o.value for o in self.inputs] or self.refs())

    def summed(self, dim: int) -> bool:
        """Whether splitting along this dimension leaves partial sums in the outputs."""
        return not self.dims[dim].combined and not any(o.carries(dim) for o in self.outputs)


def renamed(operator: Operator, names: Mapping[str, str]) -> Operator:
    """The operator with other values as operands."""
    inputs = tuple(replace(o, value=names.get(o.value, o.value)) for o in operator.inputs)
    args, kwargs = rename_refs((operator.args, operator.kwargs), names)
    return replace(operator, args=args, kwargs=kwargs, inputs=inputs)


def dims_of(operator: Operator, operand: Operand) -> tuple[list[Dim], tuple[tuple[int, ...], ...]]:
    """The dimensions of a tensor by itself, as an operator that reads or makes it has them, and the numbers of those of
    each axis."""
    dims, axes = list[Dim](), list[tuple[int, ...]]()
    for axis in operand.axes:
        axes.append(tuple(range(len(dims), len(dims) + len(axis))))
        own = [operator.dims[d] for d in axis]
        dims += [Dim(dim.name, dim.size, dim.cls) for dim in own]
    return dims, tuple(axes)


Twin = tuple[str, str, int]  # the module, the kind, and how many of the kind there were before in the module


def twins(operators: Iterable[Operator]) -> Iterator[tuple[Twin, Operator]]:
    """Each operator with the key by which its twin in another graph of the model is found."""
    count: Counter[tuple[str, str]] = Counter()
    for operator in operators:
        place = (operator.path, operator.kind)
        yield (*place, count[place]), operator
        count[place] += 1


ITEMSIZE = {"float64": 8, "int64": 8, "complex64": 8, "bfloat16": 2, "float16": 2, "bool": 1, "uint8": 1, "int8": 1}


class Origin(StrEnum):
    INPUT = "input"
    SEED = "seed"  # the seed and the number of the step, from which random numbers follow
    WEIGHT = "weight"
    BUFFER = "buffer"
    CONSTANT = "constant"  # a tensor stored in the captured program
    OPERATOR = "operator"


class Value(Record):
    """A tensor of the graph. For weights and buffers `name` is the module's own name ("transformer.h.0.ln_1.weight").

    `factors` gives, axis by axis, the classes (`Dim.cls`) of its factors and `sizes` their sizes.
    """

    name: str
    origin: Origin
    shape: tuple[int, ...]
    dtype: str
    differentiable: bool
    factors: tuple[tuple[int, ...], ...]
    sizes: tuple[tuple[int, ...], ...]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return ITEMSIZE.get(self.dtype, 4)


def stage_of(value: Value, maker: Operator | None) -> Stage:
    """When an operator runs that reads this value alone; `maker` is the operator that makes it, if that is known."""
    if value.origin is Origin.OPERATOR:
        return Stage.COMPUTE if maker is None else maker.stage
    known = {Origin.INPUT: Stage.DATA, Origin.SEED: Stage.DATA, Origin.CONSTANT: Stage.CONSTANT}
    return known.get(value.origin, Stage.COMPUTE)


@dataclass(frozen=True)
class Graph:
    """A captured model with its loss: operators in an order in which they can run.

    `dim_names` gives the name of every dimension class. `updates` maps a buffer to the value it takes after the step.
    `constants` are the tensors stored in the captured program. `axes` has the names that the model gives the axes of
    its inputs, `outputs` the values that were asked for beside the loss, `returned` these in the structure that the
    forward returned, `storages` the memory of every value. If a plan names parts, the loss is the sum of `addends`,
    which no operator adds, and `inserted` are the operators that take and join parts.
    """

    name: str
    operators: tuple[Operator, ...]
    values: dict[str, Value]
    loss: str
    dim_names: dict[int, str]
    updates: dict[str, str]
    constants: dict[str, Constant] = field(default_factory=dict)
    axes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    returned: tuple[Leaf, ...] = ()
    storages: dict[str, Storage] = field(default_factory=dict, compare=False)
    addends: tuple[str, ...] = ()
    inserted: frozenset[str] = frozenset()

    @cached_property
    def by_name(self) -> dict[str, Operator]:
        """The operators by name."""
        return {o.name: o for o in self.operators}

    @cached_property
    def computing(self) -> tuple[Operator, ...]:
        """The operators that functions have, in order: those that depend on weights."""
        return tuple(o for o in self.operators if o.stage is Stage.COMPUTE)

    @cached_property
    def sources(self) -> dict[str, tuple[tuple[int, Operator, int], ...]]:
        """For each computing operator its operands that computing operators make: the operand's number, the maker, and
        the number of the maker's result."""
        made = {o.value: (operator, n) for operator in self.computing for n, o in enumerate(operator.outputs)}
        return {
            o.name: tuple((n, *made[i.value]) for n, i in enumerate(o.inputs) if i.value in made)
            for o in self.computing
        }

    @cached_property
    def makers(self) -> dict[str, Operator]:
        """The operator that makes each value; inputs, weights, buffers and constants have none."""
        return {o.value: operator for operator in self.operators for o in operator.outputs}

    @cached_property
    def readers(self) -> dict[str, tuple[Operator, ...]]:
        """The operators that read each value, in order, once for each operand; values that none reads are left out."""
        found: dict[str, list[Operator]] = {}
        for operator in self.operators:
            for operand in operator.inputs:
                found.setdefault(operand.value, []).append(operator)
        return {value: tuple(operators) for value, operators in found.items()}

    @property
    def losses(self) -> tuple[str, ...]:
        """The values whose sum is the loss: as a rule the loss itself."""
        return self.addends or (self.loss,)

    @property
    def results(self) -> set[str]:
        """The values for which a step runs: the loss, updates of buffers, and outputs."""
        return {*self.losses, *self.updates.values(), *self.outputs.values()}

    def makers_of(self, operator: Operator) -> list[Operator]:
        """The operators that make what an operator reads, in the order of its operands."""
        return [self.makers[o.value] for o in operator.inputs if o.value in self.makers]

    def readers_of(self, operator: Operator) -> list[Operator]:
        """The operators that read what an operator makes, in the order of its results."""
        return [reader for o in operator.outputs for reader in self.readers.get(o.value, ())]

    @cached_property
    def signatures(self) -> dict[str, int]:
        """A number for each operator: the same for equal calls (`signatures.py`)."""
        from ssdsl.model.signatures import signatures

        return signatures(self)

    @cached_property
    def alone(self) -> frozenset[str]:
        """Weights, buffers, constants, and values computed from these alone: no data reaches them, and their gradients
        reach weights only."""
        return self._following(Origin.WEIGHT, Origin.BUFFER, Origin.CONSTANT)

    @cached_property
    def ragged(self) -> frozenset[str]:
        """The values with as many rows as the data says: rows that are sorted by experts."""
        found = set[str]()
        for operator in self.operators:
            follows = any(o.value in found for o in operator.inputs)
            if follows if operator.row.ragged is None else operator.row.ragged:
                found.update([o.value for o in operator.outputs])
        return frozenset(found)

    @cached_property
    def repeated(self) -> frozenset[str]:
        """The computing operators that no input, weight or buffer reaches: those that repeat a constant, such as a mask
        for every sample, and those that follow from these alone."""
        values = self._following(Origin.CONSTANT)
        return frozenset(o.name for o in self.computing if o.follows_from(values))

    def _following(self, *origins: Origin) -> frozenset[str]:
        """The values of these origins, and those that are computed from these alone."""
        found = {v.name for v in self.values.values() if v.origin in origins}
        for operator in self.operators:
            if operator.follows_from(found):
                found.update([o.value for o in operator.outputs])
        return frozenset(found)

    @cached_property
    def tails(self) -> "Tails":
        """The operators at the ends of the model (`tails.py`)."""
        from ssdsl.model.tails import tails

        return tails(self)

    @cached_property
    def windowed(self) -> frozenset[int]:
        """The classes of dimensions that windows join: parts of them may be unequal."""
        pairs = ((op, d) for op in self.operators for d in op.dims if d.window is not None)
        return frozenset(cls for op, d in pairs if d.window for cls in (d.cls, op.dims[d.window.of].cls))

    @cached_property
    def moved(self) -> frozenset[int]:
        """The classes of dimensions that padding, slices and joins make of another one."""
        pairs = ((op, d.window) for op in self.operators for d in op.dims if d.window is not None)
        return frozenset(op.dims[w.of].cls for op, w in pairs if isinstance(w.shape, Moved))

    @cached_property
    def parents(self) -> frozenset[str]:
        """The paths of modules with modules in them, "" for the model itself. Operators that they call themselves, such
        as a residual, lie in no module that a path such as `h.0.mlp` names."""
        paths = {op.path for op in self.operators}
        inside = {path[:at] for path in paths for at, sign in enumerate(path) if sign == "."}
        return frozenset(inside | ({""} if any(paths) else set()))

    @cached_property
    def axes_of_windows(self) -> dict[int, int]:
        """For each class of dimensions that windows join, the lowest class of its group: classes with the same number
        are one axis of the model at several resolutions."""
        found: dict[int, int] = {}

        def first(cls: int) -> int:
            while found.setdefault(cls, cls) != cls:
                cls = found[cls]
            return cls

        for op in self.operators:
            for dim in (d for d in op.dims if d.window is not None):
                pair = first(dim.cls), first(op.dims[dim.window.of].cls)  # type: ignore[union-attr]
                found[max(pair)] = min(pair)
        return {cls: first(cls) for cls in list(found)}

    @cached_property
    def inner(self) -> dict[int, dict[int, int]]:
        """For each class of dimensions those of the next finer pieces of the same axes, with their sizes:
        `heads_per_group` for `heads`, `batch_inner1` for `batch`."""
        found: dict[int, dict[int, int]] = {}
        for value in self.values.values():
            for axis, sizes in zip(value.factors, value.sizes, strict=True):
                for (cls, _), (other, size) in pairwise(zip(axis, sizes, strict=True)):
                    if self.dim_names.get(other) == next_inside(self.dim_names.get(cls, "")):
                        found.setdefault(cls, {})[other] = size
        return found

    @cached_property
    def learning(self) -> frozenset[str]:
        """The values that have a gradient: those from which the loss follows through differentiable operators. A weight
        that requires a gradient, but is read only under `no_grad` or behind `detach`, has none."""
        found = {loss for loss in self.losses if self.values[loss].differentiable}
        for operator in reversed(self.operators):
            if any(o.value in found for o in operator.outputs):
                found.update(o.value for o in operator.inputs if self.values[o.value].differentiable)
        return frozenset(found)

    @cached_property
    def views(self) -> dict[str, dict[str, str]]:
        """The outputs of operators that are views, each with the input that it is a view of; by operator that has
        some."""
        found = ((operator.name, aliases(operator, self.storages)) for operator in self.operators)
        return {name: views for name, views in found if views}

    @cached_property
    def running(self) -> frozenset[str]:
        """The running statistics that operators change."""
        return frozenset(buffer for operator in self.operators for buffer in operator.statistics)

    @cached_property
    def users_of_changed(self) -> dict[str, list[str]]:
        """For each buffer that a step changes, the operators that read it or compute its new value, in order."""
        found: dict[str, list[str]] = {buffer: [] for buffer in self.updates}
        found |= {buffer: [] for operator in self.operators for buffer in operator.statistics}
        for operator in self.operators if found else ():
            read, made = {i.value for i in operator.inputs}, {o.value for o in operator.outputs}
            for buffer, names in found.items():
                if buffer in read or self.updates.get(buffer) in made:
                    names.append(operator.name)
        return found

    def of(self, origin: Origin) -> tuple[Value, ...]:
        return tuple(v for v in self.values.values() if v.origin is origin)
