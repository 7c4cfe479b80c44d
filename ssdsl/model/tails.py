"""Finds the operators at the ends of a model: only linear operators, or no products with weights, come after them."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ssdsl.model.graph import Graph, Operand, Operator, Origin

DISPATCH, COMBINE = "ssdsl::dispatch", "ssdsl::combine"


class Tails(NamedTuple):
    """Names of operators at the ends of a model.

    `linear`: a sum over devices may stay partial through them, as only linear operators lead from them to the loss or
    to a smaller tensor. `of_loss`: those that belong to the loss. `dispatched`: those that repeat or reshape rows for
    `dispatch` only.
    """

    linear: frozenset[str]
    of_loss: frozenset[str]
    dispatched: frozenset[str]


def tails(graph: Graph) -> Tails:
    """The tails of a graph."""
    return Tails(_linear_tail(graph) | _to_smaller(graph), _loss_tail(graph), _dispatched(graph))


def _tail(
    graph: Graph, belongs: Callable[[Operator], bool], ends: Callable[[Operator, Sequence[str]], object]
) -> frozenset[str]:
    """The operators that belong to a tail: those that are an end of it, or whose readers, if there are any, all belong
    to it. `ends` is given an operator and its results."""
    found, read = set[str](), set[str]()  # `read` are the values that these operators read
    for operator in reversed(graph.operators):
        made = [o.value for o in operator.outputs]
        is_end = ends(operator, made)
        if not is_end and read.isdisjoint(made):
            continue
        if belongs(operator) and (is_end or all(user.name in found for user in graph.readers_of(operator))):
            found.add(operator.name)
            read.update([o.value for o in operator.inputs])
    return frozenset(found)


def _linear_tail(graph: Graph) -> frozenset[str]:
    """The linear operators from which only linear ones lead to the loss: no sum has to be completed on the way."""
    losses = frozenset(graph.losses)
    return _tail(
        graph,
        lambda operator: bool(operator.row.linear_in),
        lambda _, made: not losses.isdisjoint(made) and graph.readers.keys().isdisjoint(made),
    )


def _to_smaller(graph: Graph) -> frozenset[str]:
    """The linear operators behind a `combine` from which only linear ones lead to a tensor smaller than its operand."""
    if not any(operator.target == COMBINE for operator in graph.operators):
        return frozenset()

    def bytes_of(operands: Iterable[Operand]) -> list[int]:
        return [math.prod(v.shape) * v.itemsize for v in (graph.values[o.value] for o in operands)]

    smaller = _tail(
        graph,
        lambda operator: bool(operator.row.linear_in and operator.inputs),
        lambda operator, _: (
            operator.row.linear_in
            and operator.inputs
            and max(bytes_of(operator.inputs)) > sum(bytes_of(operator.outputs))
        ),
    )
    behind, found = set[str](), set[str]()
    for operator in graph.operators:
        if operator.name in smaller and any(i.value in behind for i in operator.inputs):
            found.add(operator.name)
        if operator.name in found or operator.target == COMBINE:
            behind.update(o.value for o in operator.outputs)
    return frozenset(found)


def _loss_tail(graph: Graph) -> frozenset[str]:
    """The operators after the last products with weights: the loss."""
    weights = {v.name for v in graph.of(Origin.WEIGHT)}
    return _tail(
        graph,
        lambda operator: weights.isdisjoint(o.value for o in operator.inputs) or not operator.row.contraction,
        lambda _, made: graph.readers.keys().isdisjoint(made),
    )


def _dispatched(graph: Graph) -> frozenset[str]:
    dispatches = frozenset(o.name for o in graph.computing if o.target == DISPATCH)
    if not dispatches:
        return dispatches
    repeats = {o.name for o in graph.computing if o.row.regroups or o.kind == "expand"} | dispatches
    return _tail(graph, lambda o: o.name in repeats, lambda o, _: o.name in dispatches) - dispatches
