"""Finds the operators at the ends of a model: only linear operators, or no products with weights, come after them."""

import math
from typing import NamedTuple

from ssdsl.model.graph import Graph, Origin

DISPATCH = "ssdsl::dispatch"


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


def _linear_tail(graph: Graph) -> frozenset[str]:
    """The linear operators from which only linear ones lead to the loss: no sum has to be completed on the way."""
    found: set[str] = set()
    for operator in reversed(graph.operators):
        users = [c for o in operator.outputs for c in graph.readers.get(o.value, ())]
        is_loss = any(o.value == graph.loss for o in operator.outputs)
        if operator.row.linear_in and (users or is_loss) and all(u.name in found for u in users):
            found.add(operator.name)
    return frozenset(found)


def _to_smaller(graph: Graph) -> frozenset[str]:
    """The linear operators behind a `combine` from which only linear ones lead to a tensor smaller than its operand."""
    sizes = {v.name: math.prod(v.shape) * v.itemsize for v in graph.values.values()}
    smaller, found = set[str](), set[str]()
    for operator in reversed(graph.operators):
        users = [c for o in operator.outputs for c in graph.readers.get(o.value, ())]
        if operator.row.linear_in and operator.inputs:
            shrinks = max(sizes[i.value] for i in operator.inputs) > sum(sizes[o.value] for o in operator.outputs)
            if shrinks or (users and all(u.name in smaller for u in users)):
                smaller.add(operator.name)
    behind = set[str]()
    for operator in graph.operators:
        if operator.name in smaller and any(i.value in behind for i in operator.inputs):
            found.add(operator.name)
        if operator.name in found or operator.target == "ssdsl::combine":
            behind.update(o.value for o in operator.outputs)
    return frozenset(found)


def _loss_tail(graph: Graph) -> frozenset[str]:
    """The operators after the last products with weights: the loss."""
    found: set[str] = set()
    for operator in reversed(graph.operators):
        weights = any(graph.values[o.value].origin is Origin.WEIGHT for o in operator.inputs)
        users = (c for o in operator.outputs for c in graph.readers.get(o.value, ()))
        if not (weights and operator.row.contraction) and all(u.name in found for u in users):
            found.add(operator.name)
    return frozenset(found)


def _dispatched(graph: Graph) -> frozenset[str]:
    found = set[str]()
    for operator in reversed(graph.computing):
        users = [c for o in operator.outputs for c in graph.readers.get(o.value, ())]
        for_dispatch = users and all(u.name in found or u.target == DISPATCH for u in users)
        if for_dispatch and (operator.row.regroups or operator.kind == "expand"):
            found.add(operator.name)
    return frozenset(found)
