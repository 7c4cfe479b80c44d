"""Turns a model into its Graph: capture, normalise, analyse, name; the whole front end in reading order."""

import math
from collections import Counter
from collections.abc import Mapping

from ssdsl.collector import paused_collector
from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.model.capture.capture import Capture, capture_calls
from ssdsl.model.capture.export import no_loss
from ssdsl.model.capture.overloads import as_data, constant_of, target_of
from ssdsl.model.checks.lookups import check_lookups
from ssdsl.model.dims.analyse import Analysis, BoundCall, BoundLetter, analyse, stages
from ssdsl.model.dims.name_dims import name_dims
from ssdsl.model.graph import Dim, DimWindow, Graph, Operand, Operator, Origin, Stage, Value
from ssdsl.model.load.model import Model
from ssdsl.model.observe.observe import observed
from ssdsl.model.ops.reader import TypedCall, axes_of, kernel_dims
from ssdsl.model.ops.registry import row
from ssdsl.model.products import multiply_adds
from ssdsl.model.rewrite.calls import learning, without_unread
from ssdsl.model.rewrite.constants import expand_last
from ssdsl.model.rewrite.copy_known import copy_known
from ssdsl.model.rewrite.explicit_draws import explicit_draws, merge_positions
from ssdsl.model.rewrite.linear_scans import linear_scans
from ssdsl.model.rewrite.masks import simplify_masks
from ssdsl.model.rewrite.means import means_as_sums
from ssdsl.model.rewrite.normalise import normalise
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError


@paused_collector()
def capture(model: Model) -> Graph:
    """The graph of a model with every dimension discovered and named.

    Raises PlanError: the module cannot be captured, returns no loss, looks up rows that are not there, has an operator
    without a rule.
    """
    calls = rewritten_calls(model)
    constant, data = stages(calls)
    calls = copy_known(calls, constant | data)
    found = analyse(calls, constant)
    merge_positions(calls, found)
    graph = observed(_Builder(model, calls, found, constant, data).graph())
    if model.evaluation is None and not graph.values[graph.loss].differentiable:
        raise PlanError(no_loss(model, "a number that depends on no weight"))
    return graph


def rewritten_calls(model: Model) -> Capture:
    """The calls of a model, rewritten so that plans can split them."""
    captured = capture_calls(model)
    check_lookups(captured)
    drawn = explicit_draws(captured, model.generator)
    return means_as_sums(without_unread(expand_last(simplify_masks(linear_scans(normalise(drawn))))))


Occurrence = tuple[str, int, int]  # a letter of a call, a factor under it, and which occurrence in an operand it is


class _Builder:
    """Turns bound readings into operators, in the order of capture."""

    def __init__(self, model: Model, calls: Capture, found: Analysis, constant: set[str], data: set[str]) -> None:
        self.model, self.calls, self.found = model, calls, found
        self.stages = dict.fromkeys(data, Stage.DATA) | dict.fromkeys(constant, Stage.CONSTANT)
        self.names = name_dims(model, calls, found)
        self.learning = learning(calls)
        self.read = {name for call in calls.calls for name in call.refs()}

    def graph(self) -> Graph:
        readings = {r.call.name: r for r in (*self.found.readings, *self.found.constants)}
        operators = tuple(self._operator(readings[call.name]) for call in self.calls.calls)
        calls = self.calls
        made = [o for c in calls.calls for o in c.outputs if o in self.found.axes]
        values = {name: self._value(name) for name in (*calls.origins, *made)}
        return Graph(
            self.model.name,
            operators,
            values,
            calls.loss,
            self.names,
            calls.updates,
            {name: constant_of(tensor) for name, tensor in calls.constants.items()},
            self.model.axes,
            calls.outputs,
            calls.returned,
        )

    def _value(self, name: str) -> Value:
        tensor = self.calls.tensors[name]
        axes = self.found.axes[name if name in self.read else self.calls.updates.get(name, name)]
        leaves = [self.found.factors.leaves(axis) for axis in axes]
        return Value(
            name,
            self.calls.origins.get(name, Origin.OPERATOR),
            tensor.shape,
            tensor.dtype,
            name in self.learning,
            tuple(map(tuple, leaves)),
            tuple(tuple(self.found.factors.size(f) for f in axis) for axis in leaves),
        )

    def _operator(self, reading: BoundCall) -> Operator:
        """A constant is computed whole, wherever it is needed: its dimensions are its outputs' axes."""
        call, numbers = reading.call, dict[Occurrence, int]()
        outputs = tuple(self._operand(reading, o, numbers) for o in reading.outputs)  # their dimensions come first
        inputs = tuple(self._operand(reading, o, numbers) for o in reading.inputs)
        letters = {slot.letter.name: slot for slot in reading.slots.values()}
        dims = [self._dim(occurrence, letters, numbers, call) for occurrence in numbers]
        operator = Operator(
            call.name,
            call.kind,
            call.target.name(),
            call.path,
            call.source,
            self.stages.get(call.name, Stage.COMPUTE),
            (target_of(call.target), *as_data(call.args)),
            tuple((name, as_data(item)) for name, item in call.kwargs.items()),
            inputs,
            outputs,
            tuple(_distinct(dims)),
            row(call),
            # a rewrite may have put another call in its place
            orders=call.orders if target_of(call.target).asks_for_order else (),
        )
        return _in_runs(replace(operator, flops=_flops(call, self.calls.tensors, operator)))

    def _operand(
        self, reading: BoundCall, operand: tuple[str, list[list[str]], bool], numbers: dict[Occurrence, int]
    ) -> Operand:
        """An operand; the n-th occurrence of a factor under a letter is one dimension, in all operands."""
        value, axes, once = operand
        seen: Counter[tuple[str, int]] = Counter()

        def number(letter: str, leaf: int) -> int:
            seen[letter, leaf] += 1
            return numbers.setdefault((letter, leaf, seen[letter, leaf]), len(numbers))

        def dims(axis: list[str]) -> tuple[int, ...]:
            slots = (reading.slots[name] for name in axis)
            return tuple(number(s.letter.name, leaf) for s in slots for leaf in self.found.factors.leaves(s.factors))

        return Operand(value, tuple(map(dims, axes)), once)

    def _dim(
        self,
        occurrence: Occurrence,
        letters: Mapping[str, BoundLetter],
        numbers: Mapping[Occurrence, int],
        call: CapturedCall,
    ) -> Dim:
        """The dimension of a factor under a letter. A result that reads windows is whole, unless it and the axis that
        it reads are one dimension each."""
        name, leaf, _ = occurrence
        slot, there = letters[name], {letter for letter, _, _ in numbers}
        is_constant = self.stages.get(call.name) is Stage.CONSTANT
        whole = "it is part of a constant" if is_constant else f"`{call.kind}` needs all of it at once"
        if not is_constant and (instead := row(call).instead):
            whole += f", `{instead}` does not"
        if not is_constant and row(call).unknown:
            whole = f"ssdsl has no row for `{call.kind}`, which `ssdsl discover` can find"
        fixed = whole if slot.letter.fixed else ""
        for other in letters.values():
            reads = other.letter.window is not None and other.letter.window.of == name
            if reads and self._one_of(other, name, numbers) is None:
                axis = "that is made of several dimensions" if other.letter.name in there else "of size 1"
                fixed = f"`{call.kind}` reads windows of an axis {axis}"
        window = slot.letter.window
        of = None if window is None else self._one_of(slot, window.of, numbers)
        reading = None if window is None or of is None else DimWindow(of, window.shape)
        beside = self._one_of(slot, slot.letter.beside, numbers)
        size = self.found.factors.size(leaf)
        return Dim(self.names[leaf], size, leaf, fixed, slot.letter.combined, window=reading, beside=beside)

    def _one_of(self, slot: BoundLetter, letter: str, numbers: Mapping[Occurrence, int]) -> int | None:
        """The dimension of another letter, if that and this letter are one dimension each."""
        found = [number for (name, _, _), number in numbers.items() if name == letter] if letter else []
        return found[0] if len(found) == len(self.found.factors.leaves(slot.factors)) == 1 else None


def _in_runs(operator: Operator) -> Operator:
    """The operator; if its kernel is told where its part begins, only the outermost factor of the axis may be cut, so
    that a part is a run."""
    kernel = operator.row.kernel
    if kernel is None or not kernel.is_placed or operator.stage is Stage.CONSTANT:
        return operator
    own = kernel_dims(operator, kernel.axis)
    inner = {d for axis in axes_of(operator, *kernel.axis) for d in axis[1:] if d in own}
    reason = f"a part of `{operator.kind}` is a run of the axis"
    dims = (replace(d, fixed=d.fixed or reason) if n in inner else d for n, d in enumerate(operator.dims))
    return replace(operator, dims=tuple(dims))


def _distinct(dims: list[Dim]) -> list[Dim]:
    """Numbers a name that occurs twice in one operator: `seq.0`, `seq.1`, output axes first. Dimensions windowed on one
    of the results are called `seq.window`, keys beside queries `seq.keys`; they do not count."""
    names = [d.name for d in dims if d.window is None and d.beside is None]
    counts: dict[str, int] = {}
    result = []
    for dim in dims:
        if dim.beside is not None:
            dim = replace(dim, name=f"{dim.name}.keys")
        elif dim.window is not None:
            dim = replace(dim, name=f"{dim.name}.window")
        elif names.count(dim.name) > 1:
            counts[dim.name] = counts.get(dim.name, -1) + 1
            dim = replace(dim, name=f"{dim.name}.{counts[dim.name]}")
        result.append(dim)
    return result


def _flops(call: CapturedCall, tensors: Mapping[str, Tensor], operator: Operator) -> int:
    """FLOPs of a call: two for each multiply-add of a contraction, otherwise one for each element of the results.

    A matrix product of [n, k] and [k, m] has the dimensions n, k and m: 2 n k m.
    """
    op, typed = operator.row, TypedCall(call, tensors)
    if op.flops is not None:
        return op.flops(typed)
    if op.contraction:
        return 2 * multiply_adds(operator)
    return sum(math.prod(t.shape) for t in typed.outputs)
