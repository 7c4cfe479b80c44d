"""Values that follow from weights alone: no data reaches them, and only weights lie behind their gradients."""

from ssdsl.model.graph import Graph, Origin


def weight_values(graph: Graph) -> frozenset[str]:
    """Weights, buffers, constants, and what is computed from nothing else."""
    found = {v.name for v in graph.values.values() if v.origin not in (Origin.INPUT, Origin.SEED, Origin.OPERATOR)}
    for operator in graph.operators:
        if all(o.value in found for o in operator.inputs):
            found.update(o.value for o in operator.outputs)
    return frozenset(found)
