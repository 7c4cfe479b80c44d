"""Numbers operators by signature: equal calls, which differ in the names of their values only, have one number.

Two operators of one signature have the same target and arguments, the same dimensions, and tensors of the same sizes,
dtypes and memory layout, with gradients for the same ones. Facts that follow from these alone are computed once for
each signature.
"""

from typing import Any

from ssdsl.model.graph import Graph, Operator, numbered


def signatures(graph: Graph) -> dict[str, int]:
    """The signature of each operator of a graph; the numbers mean nothing in another one. Operators that have none yet
    get further numbers."""
    given = {o.name: o.signature for o in graph.operators}
    first = 1 + max((n for n in given.values() if n is not None), default=-1)
    known: dict[tuple[Any, ...], int] = {}

    def number(operator: Operator) -> int:
        return known.setdefault(signature(operator, graph), first + len(known))

    return {o.name: number(o) if o.signature is None else o.signature for o in graph.operators}


def signature(operator: Operator, graph: Graph) -> tuple[Any, ...]:
    """The signature of an operator: equal calls of any two graphs have equal ones."""
    refs = operator.refs()
    names = dict.fromkeys((*refs, *operator.values))
    numbers = {name: number for number, name in enumerate(names)}
    called = iter([numbers[name] for name in refs])
    roots: dict[str, int] = {}  # which of them share memory
    return (
        operator.kind,
        operator.target,
        operator.stage,
        numbered(operator.args, called),
        numbered(operator.kwargs, called),
        tuple([(numbers[o.value], o.axes, o.once) for o in operator.inputs]),
        tuple([(numbers[o.value], o.axes) for o in operator.outputs]),
        tuple([(d.size, d.fixed, d.combined, d.window, d.beside) for d in operator.dims]),
        operator.orders,
        tuple([_tensor(name, graph, roots) for name in names]),
    )


def _tensor(name: str, graph: Graph, roots: dict[str, int]) -> tuple[Any, ...]:
    value, place = graph.values[name], graph.storages[name]
    number = roots.setdefault(place.root, len(roots))
    return value.origin, value.shape, value.dtype, value.differentiable, name in graph.learning, number, place.strides
