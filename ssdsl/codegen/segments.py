"""A block as segments: runs of operators of one layer (or one recompute unit), each to become a function."""

import re
from dataclasses import dataclass, field

from ssdsl.lower.schedule import Block, Conversion
from ssdsl.model.graph import Graph, Operator
from ssdsl.model.layers import layer_of


@dataclass(slots=True)
class Segment:
    """Consecutive items of a block. `layer` is the module path its weights are named under, empty for the root."""

    layer: str
    unit: int | None
    items: list[Operator | Conversion] = field(default_factory=list)


def segments(block: Block, graph: Graph, layers: tuple[str, ...]) -> list[Segment]:
    """The block's operators in order, each behind the conversions that it is the first to read."""
    operators = {o.name: o for o in graph.operators if o.name in set(block.operators)}
    pending = {c.result: c for c in block.conversions}
    made = {o.value for op in operators.values() for o in op.outputs}
    shared = _shared(block, operators, layers, made)
    found: list[Segment] = [Segment("", None, [c for c in block.conversions if c.result in shared])]
    for name in block.operators:
        operator = operators[name]
        layer, unit = layer_of(operator.path, layers), block.units.get(name)
        if (found[-1].layer, found[-1].unit) != (layer, unit):
            found.append(Segment(layer, unit))
        for read in block.reads[name]:
            if read in pending and read not in shared:
                found[-1].items.append(pending.pop(read))
        found[-1].items.append(operator)
    sent = {o.name for o in block.outputs}
    leaving = [c for c in block.conversions if c.result in sent and c.result in pending and c.result not in shared]
    if leaving:
        found.append(Segment("", None, list(leaving)))
    return [s for s in found if s.items]


def _shared(block: Block, operators: dict[str, Operator], layers: tuple[str, ...], made: set[str]) -> set[str]:
    """Conversions of values from outside the block that several layers read: they come first, once."""
    readers: dict[str, set[tuple[str, int | None]]] = {}
    for name, reads in block.reads.items():
        for read in reads:
            readers.setdefault(read, set()).add((layer_of(operators[name].path, layers), block.units.get(name)))
    outside = {c.result for c in block.conversions if c.value not in made}
    return {r for r in outside if len(readers.get(r, ())) > 1}


def layer_word(layer: str) -> str:
    """What the functions of a layer are called: its path without numbers (`transformer_h`)."""
    return "_".join(p for p in re.sub(r"#\d+", "", layer).split(".") if not p.isdigit()) or "root"
