"""Values that follow from weights alone: an operator's gradient for them belongs to the weights' half of backward."""

from ssdsl.model.graph import Graph, Origin, Stage


def weight_values(graph: Graph) -> frozenset[str]:
    """Weights, buffers, constants, and what is computed from nothing else."""
    found = {v.name for v in graph.values.values() if v.origin not in (Origin.INPUT, Origin.OPERATOR)}
    for operator in graph.operators:
        if operator.stage is Stage.CONSTANT or all(o.value in found for o in operator.inputs):
            found.update(o.value for o in operator.outputs)
    return frozenset(found)
