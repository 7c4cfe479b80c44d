"""Which operators of a block in halves mix weights with activations: their weights' gradients are left for later."""

from dataclasses import dataclass
from enum import Enum

from ssdsl.lower.schedule import Block, base
from ssdsl.model.graph import Graph, Origin, Stage


class Side(Enum):
    """What an operand is to an operator that runs in halves."""

    ACTIVATION = "activation"
    WEIGHT = "weight"
    FIXED = "fixed"  # it has no gradient


@dataclass(frozen=True, slots=True)
class Halves:
    """`sides`: for each operator that reads both weights and what depends on data, the sides of its operands.
    `only_weights`: the outputs of the block that follow from weights alone. `before`: operators on weights alone, which
    are not computed again, because their backward is in the other half."""

    sides: dict[str, tuple[Side, ...]]
    before: frozenset[str]
    only_weights: frozenset[str]


def halves_of(block: Block, graph: Graph) -> Halves:
    """What of a block is called in halves; nothing, unless the plan orders them apart."""
    if not (block.halves and block.has_backward):
        return Halves({}, frozenset(), frozenset())
    inside = set(block.operators)
    made = {o.value: op for op in graph.operators for o in op.outputs}
    converted = {c.result: c.value for c in block.conversions}
    given = {i.value for i in block.inputs}
    weight_side: dict[str, bool] = {}

    def is_weight_side(name: str) -> bool:
        """Whether a value follows from weights and constants alone."""
        while name in converted:
            name = converted[name]
        name = base(name)
        if name not in weight_side:
            producer = made.get(name)
            if name in given:
                weight_side[name] = False
            elif producer is not None and producer.name in inside:
                weight_side[name] = all(map(is_weight_side, block.reads[producer.name]))
            elif producer is not None:
                weight_side[name] = producer.stage is Stage.CONSTANT
            else:
                weight_side[name] = graph.values[name].origin is not Origin.INPUT
        return weight_side[name]

    def side(name: str) -> Side:
        if not graph.values[base(name)].differentiable:
            return Side.FIXED
        return Side.WEIGHT if is_weight_side(name) else Side.ACTIVATION

    found = {}
    before = []
    for name in block.operators:
        reads = block.reads[name]
        if all(map(is_weight_side, reads)):
            before.append(name)
        elif Side.WEIGHT in (those := tuple(map(side, reads))):
            found[name] = those
    return Halves(found, frozenset(before), frozenset(o.name for o in block.outputs if side(o.name) is Side.WEIGHT))
