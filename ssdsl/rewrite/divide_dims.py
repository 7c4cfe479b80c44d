"""Divides a dimension in two if indices cut it into equal parts and another one into unequal parts: then the equal
parts are of the first factor, and the unequal ones of the second.

`split model by batch into dp, m = [3, 1]` with 8 samples cuts each of two runs of 4 into 3 and 1. The samples of a part
of `m` are then not one run of the batch; but with batch = 2 · 4 they are a run of the second factor, and factors are
known from reshapes. `into m = [6, 2], dp` says the same: a device has half of each part of `m`, 3 and 1.

>>> from tests.lower.by_hand import described, graph_of, plan_of, saying
>>> plan = plan_of(graph_of("weight w[batch]\\ny[batch] = relu w[batch]", batch=8), {"dp": 2}, {"batch": "dp 2, m 2"})
>>> dp, m = plan.of("y").indices
>>> plan = saying(plan, "y", indices=(dp, replace(m, digit=replace(m.digit, at=parts_of((3, 1))))))
>>> print(described(plan))
y = relu w on gpus (batch 8 by dp, m)
>>> print(described(divide_dims(plan)))
y = relu w on gpus (batch 2 by dp, batch 4 by m)
"""

from collections.abc import Iterator
from math import prod

from ssdsl.model.graph import Graph, Operator
from ssdsl.model.ops.reader import kernel_dims
from ssdsl.plan.edit import Edit
from ssdsl.plan.plan import Index, Plan
from ssdsl.plan.regions import Regions, lengths_of, parts_of
from ssdsl.record import replace

Outer = dict[int, int]  # by the class of a dimension: the number of equal parts, each of which is cut into unequal ones


def divide_dims(plan: Plan) -> Plan:
    """The plan with two dimensions in place of each one that has to be divided."""
    if not (wanted := _outer(plan)):
        return plan
    groups, outer = _groups(plan.graph), dict[int, int]()
    for cls, parts in wanted.items():
        group = groups.get(cls, {cls})
        if all(_obstacle(plan, one, parts) is None for one in group):
            outer |= {one: outer.get(one, parts) for one in group}
    if not outer:
        return plan
    edit = Edit(plan)
    edit.divide(outer)
    for operator in plan.graph.operators:
        if any(operator.dims[i.dim].cls in outer for i in plan.of(operator.name).indices):
            edit.cut(operator.name, _indices(plan, operator, outer, edit.of(operator.name).indices))
    return edit.done()


# -- which dimensions --------------------------------------------------------------------------------------------------


def _outer(plan: Plan) -> Outer:
    found: Outer = {}
    uneven = {id(r) for r in plan.operators.values() if any(i.digit.at is not None for i in r.indices)}
    for operator in (o for o in plan.graph.operators if id(plan.of(o.name)) in uneven):
        for number, dim in enumerate(operator.dims):
            cuts = [i for i in plan.of(operator.name).indices if i.dim == number]
            equal = [i for i in cuts if i.digit.sizes is None]
            if equal and len(cuts) == len(equal) + 1:
                found.setdefault(dim.cls, prod(i.digit.parts for i in equal))
    return found


def _groups(graph: Graph) -> dict[int, set[int]]:
    """The classes that are one axis of a buffer, as it is read and as its new value is made: all or none are divided,
    so that a buffer has the factors of its new value."""
    groups: dict[int, set[int]] = {}
    for buffer, value in graph.updates.items():
        pairs = zip(graph.values[buffer].factors, graph.values[value].factors, strict=True)
        for one, other in ((a, b) for old, new in pairs if len(old) == len(new) for a, b in zip(old, new, strict=True)):
            group = groups.get(one, {one}) | groups.get(other, {other})
            groups |= dict.fromkeys(group, group)
    return groups


def undivided_by(plan: Plan, cls: int) -> Operator | None:
    """The operator for which a class that has equal and unequal parts cannot be divided."""
    parts = _outer(plan).get(cls)
    group = sorted(_groups(plan.graph).get(cls, {cls}))
    return None if parts is None else next((o for one in group if (o := _obstacle(plan, one, parts))), None)


def _obstacle(plan: Plan, cls: int, parts: int) -> Operator | None:
    """The first operator whose indices do not cut one factor or the other, or which needs runs of the dimension."""
    is_windowed = cls in plan.graph.windowed
    for operator in plan.graph.operators:
        for number in (n for n, dim in enumerate(operator.dims) if dim.cls == cls):
            sides = _sides(plan, operator, number, parts)
            if is_windowed or sides is None or (True in sides and _is_merged(operator, number)):
                return operator
    return None


def _is_merged(operator: Operator, number: int) -> bool:
    """Whether a kernel works along a dimension, so that a part of it has to be one run."""
    kernel = operator.row.kernel
    return kernel is not None and number in kernel_dims(operator, *kernel.axes)


def _sides(plan: Plan, operator: Operator, number: int, parts: int) -> list[bool] | None:
    """Whether each index of a dimension cuts the inner factor, in their order; None if an index cuts both."""
    left, sides = parts, []
    if any(i.also is not None and number in (i.dim, i.also) for i in plan.of(operator.name).indices):
        return None
    for index in (i for i in plan.of(operator.name).indices if i.dim == number):
        is_inner = left == 1 or index.digit.sizes is not None
        if index.outside > 1 or (not is_inner and left % index.digit.parts):
            return None
        if index.digit.at is not None and _within(index.digit.at, operator.dims[number].size // parts) is None:
            return None
        left //= 1 if is_inner else index.digit.parts
        sides.append(is_inner)
    return sides


def _within(at: Regions, size: int) -> Regions | None:
    """Parts of a whole dimension as parts of one equal run of `size`; None where they are not the same in each run.

    >>> _within((((0, 6),), ((6, 8),)), 4)
    (((0, 3),), ((3, 4),))
    >>> _within((((0, 5),), ((5, 8),)), 4) is None
    True
    """
    sizes = lengths_of(at)
    times, rest = divmod(sum(sizes), size)
    if times == 1 and not rest:
        return at
    if rest or at != parts_of(sizes) or any(n % times for n in sizes):
        return None
    return parts_of(tuple(n // times for n in sizes))


def _indices(plan: Plan, operator: Operator, outer: Outer, divided: tuple[Index, ...]) -> Iterator[Index]:
    """The `divided` indices of an operator, each on that one of two factors which it cuts."""
    parts = {d: outer[dim.cls] for d, dim in enumerate(operator.dims) if dim.cls in outer}
    sides = {d: iter(_sides(plan, operator, d, count) or ()) for d, count in parts.items()}
    for before, index in zip(plan.of(operator.name).indices, divided, strict=True):
        if (d := before.dim) in parts:
            at = index.digit.at
            within = None if at is None else _within(at, operator.dims[d].size // parts[d])
            index = replace(index, dim=index.dim + next(sides[d]), digit=replace(index.digit, at=within))
        yield index
