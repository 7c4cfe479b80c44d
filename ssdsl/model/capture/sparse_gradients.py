"""Weights whose gradients are sparse on one device: tables that are only looked up, with `sparse=True`.

A plan's gradients are dense. Their numbers are the same, but some optimizers take only one of the two kinds.
"""

from ssdsl.model.graph import Graph, Operator, Origin, Ref
from ssdsl.model.ops.reader import argument

TABLES = ("aten::embedding", "aten::_embedding_bag")


def sparse_weights(graph: Graph) -> tuple[str, ...]:
    """The names of the trained weights to whose gradients every operator adds a sparse one."""
    readers: dict[str, list[Operator]] = {v.name: [] for v in graph.of(Origin.WEIGHT) if v.name in graph.learning}
    for operator in graph.operators:
        for name in {i.value for i in operator.inputs} & readers.keys():
            readers[name].append(operator)
    return tuple(name for name, found in readers.items() if found and all(adds_sparse(o, name) for o in found))


def adds_sparse(operator: Operator, weight: str) -> bool:
    """Whether an operator adds a sparse gradient to a weight's."""
    if operator.target not in TABLES or operator.args[1] != Ref(weight):
        return False
    return bool(argument(operator, "sparse"))
