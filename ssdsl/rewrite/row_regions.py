"""Finds regions whose rows can lie with their experts, and the indices that cut the rows inside and around them."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from ssdsl.model.graph import Dim, Graph, Operand, Operator, Stage
from ssdsl.plan.plan import Index, Plan
from ssdsl.plan.regions import Regions
from ssdsl.record import Record, replace

ROUTED = "ssdsl::routed_mm"
EACH_ROW = ("aten::split.Tensor", "aten::split_with_sizes", "aten::slice.Tensor", "aten::_to_copy")
Cut = tuple[str, int, Regions | None]  # an index, without the dimension


class ExpertRegion(Record):
    """Products of experts that read the experts of their rows from one value, `ids`, and the operators between them.

    The `kept` outer dimensions of the rows stay dimensions of the rows of an expert, and of the next one the number of
    its part, of `parts` that are as large; the others become slots. `inside` are the indices of the region's operators,
    `outside` those of the operators that bring rows to their experts and back; they differ where rows travel. In both,
    dimension 0 is the experts', and those of the rows follow.
    """

    ids: str
    experts: Dim
    operators: dict[str, tuple[int, ...]]  # each with the dimensions of its rows
    kept: int
    parts: int
    inside: tuple[Index, ...]
    outside: tuple[Index, ...]

    @property
    def names(self) -> set[str]:
        """The names of the indices that cut experts."""
        return {i.name for i in self.inside if i.dim == 0}

    def cut_by(self, inside: Iterable[Index], outside: Iterable[Index], sizes: Sequence[int]) -> "ExpertRegion | None":
        """The region with other indices, for rows of these sizes; None if not all of them cut what stays a dimension of
        the rows of an expert."""
        inside, outside = tuple(inside), tuple(outside)
        parts = {i.dim - 1: 1 for i in (*inside, *outside) if i.dim}
        for place in parts:
            within, around = ([i for i in side if i.dim == 1 + place] for side in (inside, outside))
            are_equal = len(around) == 1 and len({*(around[0].digit.sizes or (0,))}) == 1  # as many rows in each part
            is_plain = all(i.digit.at is None for i in around)
            fits = all(i.digit.at is None for i in within) and (is_plain or are_equal)
            parts[place] = math.prod(i.digit.parts * i.outside for i in around) if fits else sizes[place]
        apart = {i.dim - 1 for i in outside if i.digit.at is not None and i not in inside}
        if (stays := _staying(sizes, parts, self.experts.size, apart)) is None:
            return None
        return replace(self, inside=inside, outside=outside, kept=stays[0], parts=stays[1])


def _staying(
    sizes: Sequence[int], parts: Mapping[int, int], experts: int, apart: Set[int] = frozenset()
) -> tuple[int, int] | None:
    """How many outer dimensions of rows can stay, and into how many parts the next one is divided, so that all that
    `parts` says is cut stays, and the rows behind it are a multiple of the number of experts: slots are of equal size.
    Dimensions that are cut `apart`, into parts that are no runs, can only be divided: their parts have numbers.

    >>> _staying((8, 16, 2), {0: 4}, 4), _staying((8, 16, 2), {0: 2, 1: 2}, 4), _staying((8, 16, 2), {1: 16}, 4)
    ((1, 1), (1, 2), None)
    """
    whole = max((k for k in range(len(sizes)) if math.prod(sizes[k:]) % experts == 0), default=0)
    last = max(parts, default=-1)
    if math.prod(sizes[whole:]) % experts or apart - {last}:
        return None
    if last < whole and not apart:
        return whole, 1
    each, rest = divmod(sizes[last], parts[last])
    return None if rest or each * math.prod(sizes[last + 1 :]) % experts else (last, parts[last])


def regions_of(plan: Plan) -> Iterator[ExpertRegion]:
    """The regions of a plan that cuts experts over devices."""
    groups: dict[str, list[Operator]] = {}
    for operator in plan.graph.operators:
        if operator.target == ROUTED:
            groups.setdefault(operator.inputs[2].value, []).append(operator)
    for products in groups.values():
        if (region := _region(plan, products)) is not None:
            yield region


def _region(plan: Plan, products: list[Operator]) -> ExpertRegion | None:
    """The region of products that read the same experts, if rows can lie with them."""
    first = products[0]
    if any(len(p.inputs[1].axes[0]) != 1 for p in products):
        return None
    experts, of_first = experts_of(first), rows_of(first)
    cuts = _cuts(plan, first, (experts,))
    names = {name for (name, _, _), _ in cuts}
    if of_first is None or not cuts or not all(_in_space(plan, first, name) for name in names):
        return None
    inside, rows_cut = _between(plan.graph, products), _cuts(plan, first, of_first)
    rows = {o.name: rows_of(o) for o in inside}
    sizes = tuple(first.dims[d].size for d in of_first)
    for operator in inside:
        here = rows[operator.name]
        if here is None or tuple(operator.dims[d].size for d in here) != sizes:
            return None
        others = [d for d in range(len(operator.dims)) if d not in here]
        if operator in products:
            fits = _cuts(plan, operator, (experts_of(operator),)) == cuts
        else:  # rows may be cut along the devices of the experts, other dimensions may not
            fits = not any(name in names for (name, _, _), _ in _cuts(plan, operator, tuple(others)))
        kept = [cut for cut in _cuts(plan, operator, here) if cut[0][0] not in names]
        if not fits or not is_beside(plan, operator, first) or kept != rows_cut:
            return None
    place = {experts: 0} | {d: 1 + at for at, d in enumerate(of_first)}
    indices = tuple(replace(i, dim=place[i.dim]) for i in plan.of(first.name).indices if i.dim in place)
    found = {name: here for name, here in rows.items() if here is not None}
    region = ExpertRegion(first.inputs[2].value, first.dims[experts], found, 0, 1, indices, indices)
    return region.cut_by(indices, indices, sizes)


def experts_of(product: Operator) -> int:
    """The dimension of a product's experts."""
    (dim,) = product.inputs[1].axes[0]
    return dim


def _in_space(plan: Plan, operator: Operator, index: str) -> bool:
    """Whether an index is an axis over several devices of an operator."""
    place = plan.of(operator.name).home
    axes = next(m.axes for m in plan.meshes if m.name == place.mesh)
    return dict(axes).get(index, 1) > 1 and index not in dict(place.fixed)


def _cuts(plan: Plan, operator: Operator, dims: tuple[int, ...]) -> list[tuple[Cut, int]]:
    """The indices on some dimensions, each with the place of its dimension among them."""
    indices = plan.of(operator.name).indices
    return [((i.name, i.digit.parts, i.digit.at), dims.index(i.dim)) for i in indices if i.dim in dims]


def is_beside(plan: Plan, a: Operator, b: Operator) -> bool:
    """Whether two operators run on the same devices."""
    place, other = plan.of(a.name).home, plan.of(b.name).home
    return (place.mesh, place.fixed) == (other.mesh, other.fixed)


def _between(graph: Graph, products: list[Operator]) -> list[Operator]:
    """The products, and the operators on the ways from one to another."""
    order = {o.name: at for at, o in enumerate(graph.operators)}
    names, reached, found = {p.name for p in products}, set[str](), []
    for operator in graph.operators[order[products[0].name] : order[products[-1].name] + 1]:
        if operator.name in names or any(i.value in reached for i in operator.inputs):
            reached.update(o.value for o in operator.outputs)
            found.append(operator)
    needed, inside = set[str](), []
    for operator in reversed(found):
        if operator.name in names or any(o.value in needed for o in operator.outputs):
            needed.update(i.value for i in operator.inputs)
            inside.append(operator)
    return inside[::-1]


def rows_of(operator: Operator) -> tuple[int, ...] | None:
    """The dimensions of an operator's rows, or None if it does not work on each row by itself or needs their number.

    They are the first axis of all its results, and of each operand that has them.
    """
    if operator.stage is not Stage.COMPUTE or not (
        operator.args[0].is_pointwise or operator.target in (ROUTED, *EACH_ROW)
    ):
        return None
    if (operator.row.kernel is not None and operator.target != ROUTED) or not all(o.axes for o in operator.outputs):
        return None
    rows = operator.outputs[0].axes[0]
    given = [o for o in operator.inputs if any(o.carries(d) for d in rows)]
    dims = [operator.dims[d] for d in rows]
    if not rows or not all(_has_rows(o, rows) for o in (*operator.outputs, *given)):
        return None
    return None if any(d.fixed or d.combined or d.window is not None for d in dims) else rows


def _has_rows(operand: Operand, rows: tuple[int, ...]) -> bool:
    """Whether the rows are the first axis of a tensor, and of no other."""
    return bool(operand.axes) and operand.axes[0] == rows and not any(d in a for a in operand.axes[1:] for d in rows)
