"""The prologue: what runs outside the functions. Constants once, what depends on inputs only once per step, on every
submesh that needs them."""

from dataclasses import dataclass, field

from ssdsl.ir.function import Instr, Op, Prologue, Reshard, Split
from ssdsl.ir.layout import REPLICATE, Layout, Placement, Shape, Submesh
from ssdsl.ir.value import Axis, Name, Type, Var
from ssdsl.lower.conversions.reshard import reshard
from ssdsl.lower.functions.kernels import first_of, kernel_of
from ssdsl.lower.lowering import Lowering
from ssdsl.lower.operators.coordinates import operator_splits
from ssdsl.lower.operators.operand_types import local_sizes, operand_shape, operand_types
from ssdsl.lower.operators.shard_operators import possible_indices
from ssdsl.model.graph import Operator, Origin, Stage


@dataclass(slots=True)
class _Draft:
    """The prologue of one submesh while it grows."""

    submesh: Submesh
    constants: dict[str, None] = field(default_factory=dict)
    given: dict[str, Var] = field(default_factory=dict)
    body: list[Instr] = field(default_factory=list)
    made: dict[str, tuple[Var, Shape]] = field(default_factory=dict)  # value -> as it is first made
    converted: dict[tuple[str, Layout], Var] = field(default_factory=dict)
    results: dict[Name, None] = field(default_factory=dict)


class PrologueBuilder:
    """Collects, per submesh, what its functions need of inputs, constants and data operators."""

    def __init__(self, lowering: Lowering) -> None:
        self.lowering, self.graph = lowering, lowering.graph
        self.drafts: dict[Submesh, _Draft] = {}
        self.versions: dict[tuple[str, str], dict[tuple[tuple[str, Placement], ...], int]] = {}

    def provide(self, submesh: Submesh, value: str, layout: Layout) -> Var:
        """A value on a submesh in the layout that a function needs (its digits in time not yet cut out)."""
        draft = self.drafts.setdefault(submesh, _Draft(submesh))
        var = self._in_layout(draft, value, layout)
        draft.results[var.name] = None
        return var

    def prologues(self) -> tuple[Prologue, ...]:
        """What has been provided so far, one for each submesh."""
        return tuple(
            Prologue(d.submesh, tuple(d.constants), tuple(d.given.values()), tuple(d.body), tuple(d.results))
            for d in self.drafts.values()
        )

    def _in_layout(self, draft: _Draft, value: str, layout: Layout) -> Var:
        var, shape = self._made(draft, value)
        if var.type.layout == layout:
            return var
        key = (value, layout)
        if key not in draft.converted:
            itemsize = self.graph.values[value].itemsize
            steps = reshard(
                var.type.layout, layout, shape, draft.submesh.axes, itemsize, self.lowering.links(draft.submesh)
            )
            name = self._name(draft, value, layout)
            type_ = Type(layout)
            draft.converted[key] = Var(name, type_, None, local_sizes(shape, type_, draft.submesh.axes), var.dtype)
            draft.body.append(Reshard(var.name, draft.converted[key], steps, ()))
        return draft.converted[key]

    def _made(self, draft: _Draft, value: str) -> tuple[Var, Shape]:
        if value not in draft.made:
            operator = self.graph.makers.get(value)
            if operator is not None and operator.stage is Stage.DATA:
                self._data(draft, operator)
            else:
                if operator is not None:
                    self._constant(draft, operator)
                shape = Shape(self.graph.values[value].sizes)
                type_ = Type(Layout((REPLICATE,) * len(draft.submesh.axes)))
                name, dtype = self._name(draft, value, type_.layout), self.graph.values[value].dtype
                var = Var(name, type_, None, local_sizes(shape, type_, draft.submesh.axes), dtype)
                draft.given[value] = var
                draft.made[value] = var, shape
        return draft.made[value]

    def _name(self, draft: _Draft, value: str, layout: Layout) -> Name:
        """The name of a value in a layout. A device may run several prologues: a name means the same in all."""
        known = self.versions.setdefault((draft.submesh.mesh.name, value), {})
        places = zip(draft.submesh.axes, layout.places, strict=True)
        return Name(value, known.setdefault(tuple((a, p) for (a, _), p in places if p is not REPLICATE), len(known)))

    def _constant(self, draft: _Draft, operator: Operator) -> None:
        if operator.name in draft.constants:
            return
        for ref in operator.refs():
            if (producer := self.graph.makers.get(ref)) is not None:
                self._constant(draft, producer)
            assert producer is not None or self.graph.values[ref].origin is Origin.CONSTANT
        draft.constants[operator.name] = None

    def _data(self, draft: _Draft, operator: Operator) -> None:
        axes, submesh = draft.submesh.axes, draft.submesh
        indices = possible_indices(operator, self.lowering.plan.of(operator.name).indices, submesh)
        splits: tuple[Split, ...] = tuple(
            s for s in operator_splits(operator, indices, submesh) if isinstance(s.coordinate, Axis)
        )
        reads = []
        for operand in operator.inputs:
            need, _ = operand_types(operator, splits, operand, axes, is_output=False)
            reads.append(self._in_layout(draft, operand.value, need.layout).name)
        results = []
        for operand in operator.outputs:
            made, _ = operand_types(operator, splits, operand, axes, is_output=True)
            shape = operand_shape(operator, operand)
            dtype = self.graph.values[operand.value].dtype
            name = self._name(draft, operand.value, made.layout)
            var = Var(name, made, None, local_sizes(shape, made, axes), dtype)
            draft.made[operand.value] = var, shape
            results.append(var)
        kernel, first = kernel_of(operator, splits, axes), first_of(operator, splits)
        op = Op(operator.name, splits, tuple(reads), tuple(results), kernel, first, orders=operator.orders)
        draft.body.append(op)
