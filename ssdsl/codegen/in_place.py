"""Which all_reduces may work in place: where nothing else reads the tensor, and autograd has not kept it.

A contraction keeps its inputs for backward, not its output, and hands back a gradient that it has just computed.
"""

from ssdsl.lower.schedule import Block, Conversion
from ssdsl.model.graph import Graph
from ssdsl.model.ops.registry import row


def in_place(block: Block, graph: Graph) -> dict[str, tuple[bool, bool]]:
    """For each conversion, by its result, whether its first step may change the value, and the gradient, in place."""
    inside = set(block.operators)
    producers = {v.value: o for o in graph.operators if o.name in inside for v in o.outputs}
    readers: dict[str, list[str]] = {o.name: ["leaves"] for o in block.outputs}
    for name, reads in block.reads.items():
        for value in reads:
            readers.setdefault(value, []).append(name)
    for conversion in block.conversions:
        readers.setdefault(conversion.value, []).append("conversion")
    fresh = {o.name for o in graph.operators if o.name in inside and row(o).fresh}

    def forward(c: Conversion) -> bool:
        producer = producers.get(c.value)
        return producer is not None and producer.name in fresh and len(readers[c.value]) == 1

    def backward(c: Conversion) -> bool:
        return all(r in fresh for r in readers.get(c.result, ["nothing"]))

    return {c.result: (forward(c), backward(c)) for c in block.conversions}
