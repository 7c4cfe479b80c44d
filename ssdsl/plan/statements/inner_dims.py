"""A `split` over more devices than a dimension has parts for: the rest of the axis cuts the dimension inside of it.

With two heads of keys, four heads of queries for each, and tp = 4, `split model by heads into tp` cuts `heads` into two
parts and `heads_per_group` into the other two:

    device                    0        1        2        3
    heads of queries          0, 1     2, 3     4, 5     6, 7     heads 2 · heads_per_group 4, cut by 2 · 2
    heads of keys, values     0        0        1        1        heads 2, cut by 2; a copy on two devices each

An operator without the inner dimension computes the same on the devices that differ in the inner digit alone. So a
gradient of a weight is summed over the copies, as over any axis along which a weight is whole.
"""

import math
from collections.abc import Iterator
from itertools import pairwise, takewhile

from ssdsl.model.graph import Graph, Operator
from ssdsl.plan.context import Context
from ssdsl.plan.facts import Facts
from ssdsl.plan.plan import AxisDigit, Index
from ssdsl.plan.regions import Digit
from ssdsl.plan.statements.parts import SplitParts


def sizes_left(facts: Facts, op: Operator, at: int, before: str = "") -> list[int]:
    """The distinct sizes of the parts of a dimension, as it is cut so far, or by the indices in front of `before`: 768
    cut into 3 and 2 leaves 128."""
    sizes = [op.dims[at].size]
    for index in takewhile(lambda i: i.name != before, facts.of(op.name).indices):
        if at in index.dims:
            equal = (n for size in sizes for n in (-(-size // index.digit.parts), size // index.digit.parts))
            sizes = list(dict.fromkeys(index.digit.sizes or equal))
    return sizes


def in_digits(ctx: Context, op: Operator, at: int, parts: SplitParts) -> tuple[Index, ...]:
    """The indices of an operator for parts that do not divide dimension number `at`, but do with the dimensions inside
    of it: one for each that the operator has. None if the parts are no axis of a mesh, or these do not suffice."""
    name = parts.cut.name.text
    is_axis = any((axis, size) == (name, parts.count) for _, axis, size in ctx.facts.axes())
    if not is_axis or parts.sizes is not None or parts.chunks is not None:
        return ()
    digits = _digits(ctx, op, at, op.dims[at].cls, op.dims[at].size, parts.count)
    if digits is None:
        return ()
    counts = [count for _, count in digits]
    strides = [math.prod(counts[n + 1 :]) for n in range(len(counts))]
    found = zip((place for place, _ in digits), counts, strides, strict=True)
    return tuple(
        Index(name, dim, Digit(count), parts.cut.span, of_axis=AxisDigit(Digit(count, stride), parts.count))
        for dim, count, stride in found
        if dim is not None and (dim == at or count > 1)
    )


_Digits = list[tuple[int | None, int]]  # the number of a dimension, None if the operator lacks it, and its parts


def _digits(ctx: Context, op: Operator, at: int | None, cls: int, whole: int, count: int) -> _Digits | None:
    """The parts of a dimension and of those inside of it, whose product is `count`; None if there are none."""
    graph = ctx.model.graph
    left = [whole] if at is None else sizes_left(ctx.facts, op, at)
    if len(left) > 1 or cls in graph.windowed or counts_statistics(graph, cls):
        return None
    here = math.gcd(left[0], count)
    if here == count:
        return [(at, here)]
    inside = graph.inner.get(cls, {})
    own: list[tuple[int | None, int]] = [(n, dim.cls) for n, dim in enumerate(op.dims) if dim.cls in inside]
    for place, inner in own or [(None, inner) for inner in inside]:
        if (found := _digits(ctx, op, place, inner, inside[inner], count // here)) is not None:
            kept = found if place is None or not op.dims[place].fixed else [(None, found[0][1]), *found[1:]]
            return [(at, here), *kept]
    return None


def taken_apart_by(graph: Graph, cls: int) -> Operator | None:
    """The first operator that takes a dimension and the one inside of it apart: one of its tensors has both as one
    axis, another one does not."""
    inside = graph.inner[cls]
    for op in graph.operators:
        axes = [[op.dims[d].cls for d in axis] for o in (*op.inputs, *op.outputs) for axis in o.axes]
        together = [any(one == cls and other in inside for one, other in pairwise(axis)) for axis in axes]
        alone = (cls in axis or (axis[:1] and axis[0] in inside) for axis in axes)
        if any(together) and any(a and not t for a, t in zip(alone, together, strict=True)):
            return op
    return None


def counts_statistics(graph: Graph, cls: int) -> bool:
    """Whether a dimension counts the parts of the batch with batch norm statistics of their own: the batch is cut
    between these alone, so that no statistics are taken over several devices."""
    norms = (op for op in graph.operators if op.kind == "batch_norm")
    return any(op.dims[d].cls == cls for op in norms for d in op.inputs[0].axes[1])


def inside_of(ctx: Context, op: Operator, at: int) -> list[tuple[str, int]]:
    """The dimensions inside of one, outermost first, with their sizes: of the operator, else of the model."""
    graph, cls = ctx.model.graph, op.dims[at].cls
    found: list[tuple[str, int]] = []
    while inside := graph.inner.get(cls):
        cls = next((dim.cls for dim in op.dims if dim.cls in inside), next(iter(inside)))
        found.append((graph.dim_names[cls], inside[cls]))
    return found


def of_inner_alone(
    ctx: Context, operators: frozenset[str], cut: dict[int, Index], taken: frozenset[int]
) -> Iterator[tuple[int, Index]]:
    """The operators, by number, that have a dimension which others have inside of a longer one, but not that longer
    one; each with its index. `cut` are such dimensions with their digits, `taken` the operators that have the longer
    one."""
    for number in ctx.model.numbers(operators) if cut else ():
        op = ctx.model.graph.operators[number]
        if number in taken:
            continue
        at = next((n for n, dim in enumerate(op.dims) if dim.cls in cut and not dim.fixed), None)
        if at is None or ctx.facts.index(op.name, cut[op.dims[at].cls].name) is not None:
            continue
        index = cut[op.dims[at].cls]
        if all(size % index.digit.parts == 0 for size in sizes_left(ctx.facts, op, at)):
            yield number, Index(index.name, at, index.digit, index.span, of_axis=index.of_axis)
