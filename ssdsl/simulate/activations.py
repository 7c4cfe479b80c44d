"""What one forward of a block keeps in memory until its backward: the storages that autograd and the engine hold.

Storages, not tensors, are counted: a view keeps all of what it looks into, and what several operators keep is there
once. Recomputed operators keep what enters their unit; the rest exists while the unit's backward runs.
"""

from dataclasses import dataclass

from ssdsl.lower.schedule import Block, Input, Schedule, base
from ssdsl.model.graph import Operand, Operator, Origin
from ssdsl.model.layers import layer_of, layer_paths
from ssdsl.model.saved import saved
from ssdsl.model.storage import Storage
from ssdsl.simulate.local import local_sizes, numel

Sizes = dict[str, int]  # bytes by storage
Unit = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes of one device in one task. `size_bytes` waits for backward, `for_weights` then for the weights' half:
    inputs, and gradients of results. `again_bytes` is made again where backward recomputes; `gradient_bytes` are the
    largest gradients that backward holds at once, `output_bytes` what other blocks read. `storages` names what is kept,
    with its bytes."""

    size_bytes: int
    for_weights: int
    again_bytes: int
    gradient_bytes: int
    output_bytes: int
    storages: tuple[tuple[str, int], ...]


class Activations:
    """The kept bytes of a schedule's blocks; `places` is what `storages` found."""

    def __init__(self, schedule: Schedule, places: dict[str, Storage], weights: frozenset[str]) -> None:
        self.schedule, self.places, self.weights = schedule, places, weights
        self.operators = {o.name: o for o in schedule.graph.operators}
        self.producers = {o.value: op for op in schedule.graph.operators for o in op.outputs}
        self.layers = layer_paths(schedule.graph)
        self.block_of = {name: b.number for b in schedule.blocks for name in b.operators}
        self._found: dict[int, Kept] = {}

    def of(self, block: Block) -> Kept:
        """What a task of a block keeps; nothing without a backward."""
        if block.number not in self._found:
            self._found[block.number] = self._keep(block)
        return self._found[block.number]

    def _keep(self, block: Block) -> Kept:
        readers: dict[str, tuple[Operator, int]] = {}
        for name in block.operators:
            for k, read in enumerate(block.reads[name]):
                readers.setdefault(read, (self.operators[name], k))
        held: Sizes = {}
        outputs = self._outputs(block)
        if not block.has_backward:
            return Kept(0, 0, 0, 0, sum(outputs.values()), ())
        for given in block.inputs:
            if given.value in readers and not self._lies_here(block, given):
                operator, k = readers[given.value]
                self._hold(held, block, given.value, operator, k)
        later: Sizes = {}
        again: dict[Unit, Sizes] = {}
        largest = 0
        for name in block.operators:
            operator = self.operators[name]
            kept_here = self._saved_by(block, operator)
            unit = self._unit(block, name)
            if unit is None:
                held |= kept_here
            else:
                again.setdefault(unit, {}).update(kept_here)
            if block.halves and self._has_halves(operator):
                later |= kept_here | self._result_gradients(operator)
            largest = max(largest, self._gradients(operator))
        held |= self._entering(block)
        held |= outputs
        most = max((sum(n for s, n in unit.items() if s not in held) for unit in again.values()), default=0)
        return Kept(
            sum(held.values()), sum(later.values()), most, 2 * largest, sum(outputs.values()), tuple(held.items())
        )

    def _unit(self, block: Block, name: str) -> Unit | None:
        """What is recomputed together: a unit of the plan within a layer, which is a function of the program."""
        unit = block.units.get(name)
        return None if unit is None else (unit, layer_of(self.operators[name].path, self.layers))

    def _lies_here(self, block: Block, given: Input) -> bool:
        """Whether an input is just what another block of these devices keeps."""
        producer = self.schedule.blocks[given.producer]
        return producer.submesh == block.submesh and not given.combines and producer.has_backward

    def _outputs(self, block: Block) -> Sizes:
        found: Sizes = {}
        for output in block.outputs:
            operator = self.producers[output.value]
            operand = next(o for o in operator.outputs if o.value == output.value)
            found[self._root(output.value)] = self._bytes(operator, operand)
        return found

    def _saved_by(self, block: Block, operator: Operator) -> Sizes:
        cuts = self.schedule.cuts[operator.name]
        sizes = local_sizes(operator, cuts)
        kept = saved(operator, self.schedule.graph, self.places, sizes)
        found: Sizes = {}
        for k, operand in enumerate(operator.inputs):
            if operand.value in kept.inputs:
                self._hold(found, block, block.reads[operator.name][k], operator, k)
        for output in operator.outputs:
            if output.value in kept.outputs:
                found[self._root(output.value)] = self._bytes(operator, output)
        for n, extra in enumerate(kept.extras):
            found[f"{operator.name} {extra.what} {n}"] = extra.size_bytes
        return found

    def _hold(self, found: Sizes, block: Block, read: str, operator: Operator, k: int) -> None:
        """Adds the storage of an operand, unless it is a weight or was prepared for the whole step."""
        operand = operator.inputs[k]
        if operand.value in self.weights or self._is_prepared(operand.value):
            return
        if "@" in read:  # a conversion made it
            found[read] = self._bytes(operator, operand)
            return
        root = self._root(operand.value)
        producer = self.producers.get(root)
        if producer is None or self.block_of.get(producer.name) != block.number:
            found[operand.value] = self._bytes(operator, operand)
        else:
            found[root] = self._bytes(producer, next(o for o in producer.outputs if o.value == root))

    def _is_prepared(self, value: str) -> bool:
        operator = self.producers.get(value)
        if operator is None:
            return self.schedule.graph.values[value].origin is not Origin.OPERATOR
        return operator.name not in self.schedule.cuts

    def _entering(self, block: Block) -> Sizes:
        """What recomputed units read from outside of themselves."""
        found: Sizes = {}
        made = {o.value: name for name in block.operators for o in self.operators[name].outputs}
        here = {given.value for given in block.inputs if self._lies_here(block, given)}
        for name in block.units:
            unit = self._unit(block, name)
            operator = self.operators[name]
            for k, read in enumerate(block.reads[name]):
                value = base(read)
                if value not in here and (value not in made or self._unit(block, made[value]) != unit):
                    self._hold(found, block, value, operator, k)
        return found

    def _gradients(self, operator: Operator) -> int:
        """The gradients of an operator's activations and results, alive at once when its backward runs."""
        differentiable = [o for o in operator.outputs if self.schedule.graph.values[o.value].differentiable]
        return sum(self._bytes(operator, o) for o in differentiable)

    def _has_halves(self, operator: Operator) -> bool:
        """Whether an operator meets weights that learn with activations: these weights' gradients come later."""
        values, inputs = self.schedule.graph.values, [o.value for o in operator.inputs]
        learns = any(v in self.weights and values[v].differentiable for v in inputs)
        return learns and any(v not in self.weights for v in inputs)

    def _result_gradients(self, operator: Operator) -> Sizes:
        """The gradients of an operator's results, which the weights' half of its backward starts from."""
        return {f"gradient of {o.value}": self._bytes(operator, o) for o in operator.outputs}

    def _root(self, value: str) -> str:
        return self.places[value].root

    def _bytes(self, operator: Operator, operand: Operand) -> int:
        """Of one device's part of an operand, in one task."""
        sizes = local_sizes(operator, self.schedule.cuts[operator.name])
        return numel(operand, sizes) * self.schedule.graph.values[operand.value].itemsize
