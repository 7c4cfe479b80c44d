"""Divides a dimension in two if indices cut it into equal parts and another one into unequal parts: then the equal
parts are of the first factor, and the unequal ones of the second.

`split model by batch into dp, m = [3, 1]` with 8 samples cuts each of two runs of 4 into 3 and 1. The samples of a part
of `m` are then not one run of the batch; but with batch = 2 · 4 they are a run of the second factor, and factors are
known from reshapes. `into m = [6, 2], dp` says the same: a device has half of each part of `m`, 3 and 1.
"""

from collections.abc import Iterator
from math import prod

from ssdsl.lower.stages import Planned
from ssdsl.model.graph import Dim, Graph, Operand, Operator, Value
from ssdsl.model.ops.reader import kernel_dims
from ssdsl.plan.plan import Index, Plan
from ssdsl.plan.regions import Regions, lengths_of, parts_of
from ssdsl.record import replace

Outer = dict[int, int]  # by the class of a dimension: the number of equal parts, each of which is cut into unequal ones


def divide_dims(lowering: Planned) -> Planned:
    """Replaces the graph and the indices of the plan, if there is such a dimension."""
    plan = lowering.plan
    if not (wanted := _outer(plan)):
        return lowering
    groups, outer = _groups(plan.graph), dict[int, int]()
    for cls, parts in wanted.items():
        group = groups.get(cls, {cls})
        if all(_obstacle(plan, one, parts) is None for one in group):
            outer |= {one: outer.get(one, parts) for one in group}
    if not outer:
        return lowering
    pairs = {
        cls: (unused_class(plan.graph) + 2 * n, unused_class(plan.graph) + 2 * n + 1) for n, cls in enumerate(outer)
    }
    records = {
        name: replace(
            record,
            indices=tuple(_indices(plan, operator, outer)),
            whole=tuple(replace(i, dim=_numbers(operator, outer)[i.dim][0]) for i in record.whole),
        )
        for name, record in plan.operators.items()
        for operator in (plan.graph.by_name[name],)
    }
    return replace(lowering, plan=replace(plan, graph=_graph(plan.graph, outer, pairs), operators=records))


# -- which dimensions --------------------------------------------------------------------------------------------------


def _outer(plan: Plan) -> Outer:
    found: Outer = {}
    uneven = {id(r) for r in plan.operators.values() if any(i.at is not None for i in r.indices)}
    for operator in (o for o in plan.graph.operators if id(plan.of(o.name)) in uneven):
        for number, dim in enumerate(operator.dims):
            cuts = [i for i in plan.of(operator.name).indices if i.dim == number]
            equal = [i for i in cuts if i.sizes is None]
            if equal and len(cuts) == len(equal) + 1:
                found.setdefault(dim.cls, prod(i.count for i in equal))
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
        is_inner = left == 1 or index.sizes is not None
        if index.outside > 1 or (not is_inner and left % index.count):
            return None
        if index.at is not None and _within(index.at, operator.dims[number].size // parts) is None:
            return None
        left //= 1 if is_inner else index.count
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


# -- divided dimensions ------------------------------------------------------------------------------------------------


def unused_class(graph: Graph) -> int:
    """A number that no class of dimensions has, nor any above it."""
    return 1 + max([*graph.dim_names, *(d.cls for o in graph.operators for d in o.dims)], default=0)


def _indices(plan: Plan, operator: Operator, outer: Outer) -> Iterator[Index]:
    numbers, seen = _numbers(operator, outer), dict[int, int]()
    for index in plan.of(operator.name).indices:
        at = numbers[index.dim]
        if len(at) == 1:
            yield replace(index, dim=at[0], also=None if index.also is None else numbers[index.also][0])
            continue
        sides = _sides(plan, operator, index.dim, outer[operator.dims[index.dim].cls])
        seen[index.dim] = seen.get(index.dim, -1) + 1
        dim = operator.dims[index.dim]
        within = None if index.at is None else _within(index.at, dim.size // outer[dim.cls])
        yield replace(index, dim=at[int((sides or [])[seen[index.dim]])], at=within)


def _numbers(operator: Operator, outer: Outer) -> list[tuple[int, ...]]:
    """The new numbers of each dimension of an operator: two for one that is divided."""
    found: list[tuple[int, ...]] = []
    for dim in operator.dims:
        first = sum(map(len, found))
        found.append((first, first + 1) if dim.cls in outer else (first,))
    return found


def _graph(graph: Graph, outer: Outer, pairs: dict[int, tuple[int, int]]) -> Graph:
    names = {new: graph.dim_names[cls] for cls, pair in pairs.items() if cls in graph.dim_names for new in pair}
    return replace(
        graph,
        operators=tuple(_operator(o, outer, pairs) for o in graph.operators),
        values={name: _value(v, outer, pairs) for name, v in graph.values.items()},
        dim_names=graph.dim_names | names,
    )


def _operator(operator: Operator, outer: Outer, pairs: dict[int, tuple[int, int]]) -> Operator:
    numbers = _numbers(operator, outer)
    if len(numbers) == sum(map(len, numbers)):
        return operator

    def divided(operand: Operand) -> Operand:
        return replace(operand, axes=tuple(tuple(n for d in axis for n in numbers[d]) for axis in operand.axes))

    dims: list[Dim] = []
    for dim in operator.dims:
        if dim.window is not None:
            dim = replace(dim, window=replace(dim.window, of=numbers[dim.window.of][0]))
        if dim.beside is not None:
            dim = replace(dim, beside=numbers[dim.beside][0])
        if dim.cls not in outer:
            dims.append(dim)
            continue
        parts, (first, second) = outer[dim.cls], pairs[dim.cls]
        dims += [replace(dim, size=parts, cls=first), replace(dim, size=dim.size // parts, cls=second)]
    inputs, outputs = (tuple(map(divided, operands)) for operands in (operator.inputs, operator.outputs))
    return replace(operator, inputs=inputs, outputs=outputs, dims=tuple(dims), signature=None)  # now unlike others


def _value(value: Value, outer: Outer, pairs: dict[int, tuple[int, int]]) -> Value:
    factors = tuple(tuple(n for c in axis for n in pairs.get(c, (c,))) for axis in value.factors)
    sizes = tuple(
        tuple(n for c, size in zip(axis, held, strict=True) for n in _divided(size, outer.get(c)))
        for axis, held in zip(value.factors, value.sizes, strict=True)
    )
    return replace(value, factors=factors, sizes=sizes)


def _divided(size: int, parts: int | None) -> tuple[int, ...]:
    return (size,) if parts is None else (parts, size // parts)
