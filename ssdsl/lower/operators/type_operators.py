"""Types each operator: the types of its operands and results, the kernel of its parts, and what autograd saves of them.

All of this follows from the call (its signature) and from its cut, so it is computed once for each pair of these two
numbers.
"""

from ssdsl.ir.function import Carried, Kernel, OpSplit
from ssdsl.ir.value import local_sizes
from ssdsl.lower.operators.kernels import first_of, kernel_of
from ssdsl.lower.operators.operand_types import Axes, local_dims, operand_shape, operand_types
from ssdsl.lower.operators.partial_sums import with_sunk
from ssdsl.lower.stages import Grouped, TypedGraph, TypedOperand, TypedOperator, grown
from ssdsl.model.graph import Operand, Operator
from ssdsl.model.memory.saved import saved
from ssdsl.model.memory.saved_tensors import Saved

Cut = tuple[Axes, tuple[OpSplit, ...], frozenset[str]]  # the devices' axes, the splits, where gradients stay addends
Addends = tuple[tuple[int, ...], ...]  # the numbers of the operands that are addends, for each sum that is carried
NOWHERE = frozenset[str]()


def type_operators(lowering: Grouped) -> TypedGraph:
    """Adds `typed`."""
    known: dict[tuple[int, Cut, Addends], TypedOperator] = {}
    saves, typed = _Saves(lowering), dict[str, TypedOperator]()
    for operator in lowering.graph.computing:
        name = operator.name
        cut = lowering.submeshes[name].axes, lowering.splits[name], lowering.sunk.get(name, NOWHERE)
        key = lowering.graph.signatures[name], cut, _addends(operator, cut)
        if key not in known:
            known[key] = _typed(operator, cut, len(known), saves)
        typed[name] = known[key]
    return grown(lowering, TypedGraph, typed=typed)


class _Saves:
    """The tensors that autograd saves of operators: torch is asked once for each distinct call. An operator whose
    results get no gradient (under `no_grad`, or detached) has no backward and saves nothing."""

    def __init__(self, lowering: Grouped) -> None:
        self.graph, self.learning = lowering.graph, lowering.learning
        self.known: dict[tuple[int, tuple[int, ...], str], Saved] = {}

    def of(self, operator: Operator, splits: tuple[OpSplit, ...], kernel: Kernel) -> Saved:
        """The tensors that a part saves."""
        if self.learning.isdisjoint(o.value for o in operator.outputs):
            return Saved()
        key = self.graph.signatures[operator.name], tuple(local_dims(operator, splits)), kernel.function
        if key not in self.known:
            self.known[key] = saved(operator, self.graph, *key[1:])
        return self.known[key]


def _addends(operator: Operator, cut: Cut) -> Addends:
    """The addends of an operator, as numbers of operands: a split names values, which an equal call may read in another
    order."""
    carried = (s for s in cut[1] if isinstance(s, Carried))
    return tuple(tuple(n for n, o in enumerate(operator.inputs) if o.value in s.operands) for s in carried)


def _typed(operator: Operator, cut: Cut, number: int, saves: _Saves) -> TypedOperator:
    axes, splits, _ = cut
    kernel = kernel_of(operator, splits, axes)
    return TypedOperator(
        number,
        tuple(_operand(operator, o, cut, is_output=False) for o in operator.inputs),
        tuple(_operand(operator, o, cut, is_output=True) for o in operator.outputs),
        kernel,
        first_of(operator, splits),
        saves.of(operator, splits, kernel),
    )


def _operand(operator: Operator, operand: Operand, cut: Cut, *, is_output: bool) -> TypedOperand:
    axes, splits, sunk = cut
    type_, gradient = operand_types(operator, splits, operand, axes, is_output=is_output)
    shape = operand_shape(operator, operand)
    return TypedOperand(shape, type_, with_sunk(gradient, axes, sunk), local_sizes(shape, type_, axes))
