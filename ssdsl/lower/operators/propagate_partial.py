"""Lets scalar linear operators work on partial sums: the tail of a loss takes over the indices of the sum before it.

`loss = sum / count` has no batch dimension, so a split by batch does not reach the division. Division by a constant
is linear: each part divides its own partial sum, and only the reported loss is added up. Where an operator is not
linear (a penalty that no index splits is added to the loss), it runs once, on the completed sum.

A sum over devices is carried on the same devices only: a value that goes to others is completed first.
"""

from collections.abc import Iterator
from dataclasses import replace

from ssdsl.ir.function import Carried
from ssdsl.ir.layout import Submesh
from ssdsl.ir.value import Axis, Coordinate, Time
from ssdsl.lower.lowering import Lowering
from ssdsl.model.graph import Graph, Operator, Stage
from ssdsl.model.ops.registry import is_linear, row
from ssdsl.plan.plan import Index

Partial = dict[Coordinate, Index]  # of one value: the coordinates along which it is a sum, and the index that cut it


def propagate_partial(lowering: Lowering) -> Lowering:
    """Adds to `splits` what scalar linear operators carry of the sums that they read."""
    partial: dict[str, tuple[Submesh, Partial]] = {}
    splits: dict[str, tuple[Carried, ...]] = {}
    for operator in lowering.graph.operators:
        if operator.stage is not Stage.COMPUTE:
            continue
        submesh = lowering.submeshes[operator.name]
        own = lowering.plan.indices.get(operator.name, ())
        sums = [_arriving(partial, o.value, submesh) for o in operator.inputs]
        taken = dict(_taken(operator, own, sums, lowering.graph))
        splits[operator.name] = tuple(
            Carried(
                coordinate,
                index.count,
                frozenset(o.value for o, s in zip(operator.inputs, sums, strict=True) if coordinate in s),
                index.sizes,
                index.span,
            )
            for coordinate, index in taken.items()
        )
        left = {coordinate_of(i, submesh): i for i in own if operator.summed(i.dim)} | taken
        for output in operator.outputs:
            partial[output.value] = submesh, left
    return replace(lowering, splits={name: found for name, found in splits.items() if found})


def coordinate_of(index: Index, submesh: Submesh) -> Coordinate:
    """Names join: an index that is an axis of the mesh cuts in space, any other in time."""
    return Axis(index.name) if index.name in dict(submesh.axes) else Time(index.name)


def _arriving(partial: dict[str, tuple[Submesh, Partial]], value: str, submesh: Submesh) -> Partial:
    """The sums that a value still lacks where it is read."""
    if value not in partial:
        return {}
    source, found = partial[value]
    axes = dict(submesh.axes)
    return {c: i for c, i in found.items() if (source == submesh if isinstance(c, Axis) else c.name not in axes)}


def _taken(
    operator: Operator, own: tuple[Index, ...], sums: list[Partial], graph: Graph
) -> Iterator[tuple[Coordinate, Index]]:
    if not row(operator).linear_in or any(graph.values[o.value].shape for o in operator.outputs):
        return
    names = {i.name for i in own}
    for coordinate in dict.fromkeys(c for s in sums for c in s):
        found = {s[coordinate] for s in sums if coordinate in s}
        carrying = [at for at, s in enumerate(sums) if coordinate in s]
        alike = len({(i.count, i.sizes) for i in found}) == 1
        if coordinate.name not in names and alike and is_linear(operator, carrying):
            yield coordinate, next(s[coordinate] for s in sums if coordinate in s)
