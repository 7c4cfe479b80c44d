"""Lets rows travel: where the same devices cut rows and experts, each sorts only its own rows, and sends them.

The rows that enter a region are traced back, through operators that work on each row by itself, to operators whose rows
the plan cuts. The operators on the way may be whole in the plan: the one that repeats a token for each of its experts,
and the weighted sum of their results. Such operators are cut as the rows are, so that no device repeats the work of
another one; the same holds behind the region.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ssdsl.model.graph import Dim, Operator, Origin, Stage
from ssdsl.plan.errors.parts import TokensLeft
from ssdsl.plan.plan import Index, Plan
from ssdsl.record import replace
from ssdsl.rewrite.row_regions import ExpertRegion, is_beside
from ssdsl.text.diagnostic import PlanError


def with_travelling_rows(plan: Plan, region: ExpertRegion) -> tuple[Plan, ExpertRegion]:
    """The plan with the operators around a region cut as its rows are, and the region with the indices of rows that
    travel. Both are unchanged where no devices cut both rows and experts. Each dimension of the rows may be cut by some
    of the experts' indices: batch by a, seq by b, experts by both."""
    first = next(o for o in plan.graph.operators if o.name in region.operators)
    rows, left = region.operators[first.name], region.names
    for at, dim in enumerate(rows):
        around = _Around(plan, region, first, first.dims[dim].cls, frozenset(left))
        cut = around.cut_of(first.inputs[0].value)
        if cut == ():  # rows that are an input of the model: a device can be given any part of them
            cut = around.cut_of(region.ids)
        changed = _meeting(region, 1 + at, cut, left, [first.dims[d].size for d in rows]) if cut else None
        if cut and changed is not None:
            _check_parts(cut, first.dims[dim])
            around.spread(cut)
            plan, region, left = plan.cutting(around.indices(cut)), changed, left - {i.name for i in cut}
    return plan, region


def _check_parts(cut: tuple[Index, ...], dim: Dim) -> None:
    """Raises PlanError unless indices `within` the others cut what each device has into equal parts."""
    held = dim.size // math.prod(i.digit.parts for i in cut if not i.within)
    for index in (i for i in cut if i.within):
        if index.digit.at is not None or held % index.digit.parts:
            axes = tuple(i.name for i in cut if not i.within)
            raise PlanError(TokensLeft(index.span, index.name, index.digit.parts, dim.name, axes, held))
        held //= index.digit.parts


def _meeting(
    region: ExpertRegion, dim: int, cut: tuple[Index, ...], left: set[str], sizes: Sequence[int]
) -> ExpertRegion | None:
    """The region with `cut` as the outer indices of a dimension of its rows, which are of these sizes. `left` are the
    experts' indices that cut no dimension yet. None if none of them is in `cut`, if the inner ones are not in the same
    order, or if parts are unequal."""
    own = [i for i in region.inside if i.dim == dim]
    shared = {i.name for i in cut} & left
    of_experts = [i for i in region.inside if i.dim == 0]
    apart = [i for i in cut if i.digit.at is not None and not i.within]  # such as a chunk from either end of a sequence
    if (
        not shared
        or len(cut) > 1 < 1 + len(apart)
        or any(i.digit.at is not None and not i.within for i in (*own, *of_experts))
    ):
        return None
    names = {i.name for i in own}
    if [(i.name, i.digit.parts) for i in cut if i.name in names] != [(i.name, i.digit.parts) for i in own]:
        return None
    inside = [*(i for i in region.inside if i.dim != dim), *_chosen(cut, {i.name for i in own}, dim)]
    outside = [*_chosen(of_experts, left - shared, 0), *(i for i in region.outside if i.dim not in (0, dim))]
    outside += _chosen(cut, shared | {i.name for i in own}, dim)
    return region.cut_by(inside, outside, sizes)


def _chosen(indices: tuple[Index, ...] | list[Index], names: set[str], dim: int) -> Iterator[Index]:
    """Yields those indices of a dimension that have these names. Each keeps the digit that it has among all: `outside`
    counts the parts of the indices that were left out in front of it."""
    skipped = 1
    for index in indices:
        if index.name in names:
            yield replace(index, dim=dim, also=None, outside=index.outside * skipped)
            skipped = 1
        else:
            skipped *= index.digit.parts * index.outside


@dataclass(slots=True)
class _Around:
    """The operators around a region, seen along one dimension of its rows, of class `cls`. `names` are the experts'
    indices that may cut it. `spreading` collects the operators that the plan leaves whole along their devices, and that
    will be cut as the rows are."""

    plan: Plan
    region: ExpertRegion
    first: Operator
    cls: int
    names: frozenset[str]
    spreading: dict[str, Operator] = field(default_factory=dict)

    def cut_of(self, value: str) -> tuple[Index, ...] | None:
        """The indices by which the plan cuts the rows from which a value follows, with those `within` them that the
        region has: empty where these rows are the model's input, None if they are not all cut alike, or not along
        devices of the experts. Adds the operators on the way to `spreading`."""
        found, spreading = list[tuple[Index, ...]](), dict[str, Operator]()
        if not self._walk_back(value, found, spreading):
            return None
        if not found:
            return None if spreading else ()
        if len({tuple((i.name, i.digit.parts, i.digit.at) for i in indices) for indices in found}) > 1:
            return None
        cut = (*found[0], *(i for i in self._within if i.name not in {o.name for o in found[0]}))
        if not all(self._follows(o, cut) for o in spreading.values()):
            return None
        self.spreading |= spreading
        return cut

    def spread(self, cut: tuple[Index, ...]) -> None:
        """Adds to `spreading` the readers of the region's rows that the plan leaves whole, and operators on the way to
        the other operands of what is spread."""
        reached = {o.value for op in self.plan.graph.operators if op.name in self.region.operators for o in op.outputs}
        for operator in self.plan.graph.operators:
            if operator.name in self.region.operators or reached.isdisjoint(i.value for i in operator.inputs):
                continue
            if not self._is_cut(operator) and self._works_on_rows(operator) and self._follows(operator, cut):
                self.spreading[operator.name] = operator
                reached.update(o.value for o in operator.outputs)
        for operator in [*self.spreading.values(), *(self._operators_of_region())]:
            for operand in operator.inputs:
                if operand.value not in reached and any(
                    operator.dims[d].cls == self.cls for a in operand.axes for d in a
                ):
                    self.cut_of(operand.value)

    def indices(self, cut: tuple[Index, ...]) -> dict[str, tuple[Index, ...]]:
        """The new indices of the operators in `spreading`, by name."""
        found = {}
        shared = {i.name for i in cut} & self.names
        for operator in self.spreading.values():
            own = self.plan.of(operator.name).indices
            (dim,) = self._dims(operator)
            names = shared | {i.name for i in own if i.dim == dim}
            found[operator.name] = (*(i for i in own if i.dim != dim), *_chosen(cut, names, dim))
        return found

    # -- one operator ------------------------------------------------------------------------------------------------

    def _operators_of_region(self) -> Iterator[Operator]:
        return (o for o in self.plan.graph.operators if o.name in self.region.operators)

    def _walk_back(self, value: str, found: list[tuple[Index, ...]], spreading: dict[str, Operator]) -> bool:
        operator = self.plan.graph.makers.get(value)
        if operator is None or operator.stage is not Stage.COMPUTE or operator.name in self.spreading | spreading:
            return True
        if operator.name in self.region.operators:
            return False
        if self._is_cut(operator):
            (dim,) = self._dims(operator)
            found.append(tuple(i for i in self.plan.of(operator.name).indices if i.dim == dim and not i.within))
            return is_beside(self.plan, operator, self.first)
        if not self._works_on_rows(operator):
            return False
        spreading[operator.name] = operator
        (dim,) = self._dims(operator)
        return all(self._walk_back(i.value, found, spreading) for i in operator.inputs if i.carries(dim))

    @property
    def _within(self) -> tuple[Index, ...]:
        """The region's indices that cut inside those of the rows around it."""
        (dim,) = self._dims(self.first)
        return tuple(i for i in self.plan.of(self.first.name).indices if i.dim == dim and i.within)

    def _dims(self, operator: Operator) -> tuple[int, ...]:
        return tuple(d for d, dim in enumerate(operator.dims) if dim.cls == self.cls)

    def _is_cut(self, operator: Operator) -> bool:
        """Whether the plan cuts the rows of an operator along devices of the experts."""
        dims = self._dims(operator)
        indices = self.plan.of(operator.name).indices
        return len(dims) == 1 and any(i.name in self.names for i in indices if i.dim in dims)

    def _works_on_rows(self, operator: Operator) -> bool:
        """Whether an operator works on each row by itself, without weights, has the rows in all its results, and runs
        whole on all devices of the experts."""
        graph, dims = self.plan.graph, self._dims(operator)
        if operator.stage is not Stage.COMPUTE or len(dims) != 1 or operator.row.contraction:
            return False
        dim = operator.dims[dims[0]]
        if dim.fixed or dim.combined or dim.window is not None or not is_beside(self.plan, operator, self.first):
            return False
        if any(graph.values[i.value].origin is Origin.WEIGHT for i in operator.inputs):
            return False
        if any(i.name in self.names for i in self.plan.of(operator.name).indices):
            return False
        return all(o.carries(dims[0]) for o in operator.outputs)

    def _follows(self, operator: Operator, cut: tuple[Index, ...]) -> bool:
        """Whether an operator's own indices of the rows are some of `cut`, in the same order."""
        (dim,) = self._dims(operator)
        own = [i for i in self.plan.of(operator.name).indices if dim in i.dims]
        names = {i.name for i in own}
        return not any(i.also for i in own) and [(i.name, i.digit.parts) for i in cut if i.name in names] == [
            (i.name, i.digit.parts) for i in own
        ]
