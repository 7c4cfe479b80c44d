"""An index of a program, with the options of a simulation: what several analyses look up."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ssdsl.analyse.gathers import NONE_STAY, Staying, forward_gathers, staying
from ssdsl.analyse.state import MIXED, StatePrecision
from ssdsl.cluster.cluster import Cluster
from ssdsl.ir.function import Function, OpPart
from ssdsl.ir.layout import Submesh
from ssdsl.ir.param import FlatParam, Param
from ssdsl.ir.program import Compute, Kernels, Program
from ssdsl.ir.value import Name, Var
from ssdsl.lower.operators.operand_types import local_dims
from ssdsl.lower.params.regathered import GatherStep, Regathered, regathered
from ssdsl.model.graph import ITEMSIZE, Operator, Origin
from ssdsl.model.memory.saved import saved_when_fused
from ssdsl.model.memory.saved_tensors import Saved
from ssdsl.model.memory.storage import Storage
from ssdsl.plan.plan import Phase


@dataclass(slots=True)
class ProgramIndex:
    """An index of a program, and options of the simulation. `places` are the storages of values; `weights` the values
    that follow from weights alone; `stored` those that lie in the memory of a weight, a buffer or a constant.

    `fuses_attention`: attention is one kernel, even if other operators are not. `overlaps_products`: the backward of
    matrix products computes while their collectives run. `state` says what training keeps of each weight. `of_kinds`
    remembers what is equal for sections of one kind."""

    program: Program
    state: StatePrecision = MIXED
    fuses_attention: bool = False
    overlaps_products: bool = False
    operators: dict[str, Operator] = field(init=False)
    places: dict[str, Storage] = field(init=False)
    weights: frozenset[str] = field(init=False)
    stored: frozenset[str] = field(init=False)
    _first: dict[int, Function] = field(default_factory=dict)  # by kind
    _variables: dict[int, dict[Name, Var]] = field(default_factory=dict)
    _regathered: dict[int, Regathered] = field(default_factory=dict)
    _staying: Mapping[Compute, Staying] | None = None
    _params: dict[Submesh, dict[str, Param]] = field(default_factory=dict)
    of_kinds: dict[Hashable, Any] = field(default_factory=dict)

    @classmethod
    def on(cls, program: Program, cluster: Cluster, state: StatePrecision = MIXED) -> "ProgramIndex":
        """The index for devices of a cluster. On GPUs attention is one kernel in PyTorch, too."""
        return cls(program, state, not cluster.shares_cores, cluster.overlap.products)

    @property
    def fuses(self) -> bool:
        """Whether runs of operators are one kernel (`simulate/price/fusion.py`)."""
        return self.program.kernels is not Kernels.EAGER

    def __post_init__(self) -> None:
        self.fuses_attention |= self.fuses
        self.operators = self.program.graph.by_name
        self.places = self.program.graph.storages
        self.weights = self.program.graph.alone
        origins = {v.name: v.origin for v in self.program.graph.values.values()}
        lasting = (Origin.WEIGHT, Origin.BUFFER, Origin.CONSTANT)
        self.stored = frozenset(name for name, place in self.places.items() if origins[place.root] in lasting)

    def like(self, function: Function) -> Function:
        """The first function that is equal but for names and devices."""
        if function.kind is None:
            return function
        return self._first.setdefault(function.kind, function)

    def variables(self, function: Function) -> dict[Name, Var]:
        """The local values of a function."""
        if function.number not in self._variables:
            self._variables[function.number] = function.variables()
        return self._variables[function.number]

    def product_of(self, function: Function, name: Name) -> OpPart | None:
        """The last matrix product of a function that reads a local value; None if there is none."""
        readers = map(function.at, reversed(function.uses.readers.get(name, [])))
        products = (i for i in readers if isinstance(i, OpPart) and self.operators[i.operator].row.contraction)
        return next(products, None)

    def regathered(self, function: Function) -> Regathered:
        """The gathers of a function that its backward repeats."""
        if function.number not in self._regathered:
            self._regathered[function.number] = regathered(function, self.program.flats, self.program.graph)
        return self._regathered[function.number]

    def gather_steps(self, function: Function, phase: Phase) -> tuple[GatherStep, ...]:
        """The gathers of weights in parts of a function's phase, and in backward the reductions of their gradients, if
        no weights stay from earlier tasks. The second half of a backward reads what the first has gathered."""
        if phase.is_forward:
            return tuple(forward_gathers(function, self.program.flats))
        return self.regathered(function).steps if phase.of_inputs else ()

    @property
    def staying(self) -> Mapping[Compute, Staying]:
        """By task, the weights that stay from earlier ones, or for later ones."""
        if self._staying is None:
            functions, known = self.program.functions, dict[tuple[int, Phase], frozenset[int]]()

            def gathered_by(task: Compute) -> frozenset[int]:
                key = task.function, task.phase
                if key not in known:
                    steps = self.gather_steps(functions[task.function], task.phase)
                    known[key] = frozenset(step.gather[1] for step in steps if not step.reduces)
                return known[key]

            self._staying = staying(self.program, gathered_by)
        return self._staying

    def stays(self, task: Compute) -> Staying:
        """The weights that stay from tasks before a task, or for those behind it. Where no order of tasks is known yet,
        all that may be there are."""
        if (found := self.staying.get(task)) is not None:
            return found
        if any(role.actions for role in self.program.roles):
            return NONE_STAY
        return Staying(frozenset(flat.number for flat in self.program.flats if flat.kept is not None))

    def params_on(self, submesh: Submesh) -> dict[str, Param]:
        """The parameters of a submesh, by weight."""
        if submesh not in self._params:
            self._params[submesh] = {p.weight: p for p in self.program.params if p.submesh == submesh}
        return self._params[submesh]

    def saved_by(self, op: OpPart) -> Saved:
        """The tensors that autograd keeps of an operator; other ones if operators are fused."""
        operator = self.operators[op.operator]
        if not self.fuses_attention or not op.learns or op.kernel.axes or operator.row.fused is None:
            return op.saved
        return saved_when_fused(operator, self.program.graph, local_dims(operator, op.splits))


def size_bytes(var: Var) -> int:
    """The bytes of a local value."""
    return var.elements * ITEMSIZE.get(var.dtype, 4)


def flat_bytes(flat: FlatParam, over: tuple[str, ...] = (), at: Mapping[str, int] = MappingProxyType({})) -> int:
    """The local bytes of a flat parameter, sharded over some axes: of the largest shard, or of that at these
    coordinates."""
    return flat.elements_over(over, at) * ITEMSIZE.get(flat.dtype, 4)
