"""The needs that conversions have to meet: which function needs a value, and in which layout."""

from collections.abc import Iterator
from dataclasses import replace

from ssdsl.ir.layout import REPLICATE, Layout
from ssdsl.lower.conversions.answer import Ask, Need
from ssdsl.lower.lowering import Lowering, Segment
from ssdsl.model.graph import Operator


def find_needs(lowering: Lowering) -> Lowering:
    """Adds `asks`: by operator, those for its operands and then for its results that are written to buffers; and
    `reported`: those for the outputs that are asked for by name."""
    found: dict[str, tuple[Ask, ...]] = {}
    known: dict[tuple[int, int, bool], Need] = {}
    homes = {(p.weight, p.submesh): p.layout for p in lowering.params}
    updates = {value: buffer for buffer, value in lowering.graph.updates.items()}
    for position, (number, operator) in enumerate(in_order(lowering.segments)):
        typed, submesh = lowering.typed[operator.name], lowering.segments[number].submesh
        learns = any(o.value in lowering.learning for o in operator.outputs)
        asks: list[Ask] = []
        for operand, read in zip(operator.inputs, typed.reads, strict=True):
            key = typed.number, len(asks), learns
            if key not in known:
                known[key] = Need(read.shape, read.type, read.gradient if learns else None)
            asks.append(Ask(operand.value, number, known[key], key, (position, len(asks))))
        for operand, left in zip(operator.outputs, typed.results, strict=True):
            if (buffer := updates.get(operand.value)) is not None:
                layout = homes.get((buffer, submesh)) or Layout((REPLICATE,) * len(submesh.axes))
                need = Need(left.shape, replace(left.type, layout=layout), None)
                asks.append(Ask(operand.value, number, need, need, (position, len(asks))))
        found[operator.name] = tuple(asks)
    last, makers = (len(found), 0), makers_of(lowering.segments)
    reported = {name: Ask(v, makers[v], None, None, last) for name, v in lowering.graph.outputs.items()}
    return replace(lowering, asks=found, reported=reported)


def in_order(segments: tuple[Segment, ...]) -> Iterator[tuple[int, Operator]]:
    """The operators in the order of the program, each with the number of its function."""
    return ((number, operator) for number, segment in enumerate(segments) for operator in segment.operators)


def makers_of(segments: tuple[Segment, ...]) -> dict[str, int]:
    """By value, the number of the function that makes it."""
    return {operand.value: number for number, operator in in_order(segments) for operand in operator.outputs}
