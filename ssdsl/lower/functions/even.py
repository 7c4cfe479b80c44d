"""Where a digit lies in a part of a tensor, unless unequal parts make the place vary."""

from ssdsl.ir.layout import Cut, Shape, Shard, cut
from ssdsl.lower.errors import UnevenOutside
from ssdsl.plan.plan import Index, Plan
from ssdsl.text.diagnostic import PlanError


def even_cut(plan: Plan, shape: Shape, shard: Shard, fixed: list[Shard]) -> Cut:
    """The place of a digit in the part that carries one value of each of the `fixed` digits; raises PlanError as
    `check_even` does."""
    check_even(plan, shape, shard.factor, tuple(fixed))
    for held in fixed:  # a run of unequal parts is as long as what lies inside of it
        if len(set(held.lengths or ())) > 1:
            check_even(plan, shape, held.factor, (shard,))
    return cut(shape, shard, tuple(fixed))


def check_even(plan: Plan, shape: Shape, factor: int, fixed: tuple[Shard, ...]) -> None:
    """Raises PlanError where a factor lies behind one of unequal parts in an axis that a reshape has merged."""
    for held in fixed:
        is_outside = held.factor < factor and shape.axis_of(held.factor) == shape.axis_of(factor)
        if is_outside and len(set(held.lengths or ())) > 1:
            index = _index_of(plan, held)
            merged = " · ".join(map(str, shape.axes[shape.axis_of(factor)]))
            raise PlanError(UnevenOutside(index.span if index else None, index.name if index else "?", merged))


def _index_of(plan: Plan, held: Shard) -> Index | None:
    """The index that cuts into such parts."""
    found = [i for indices in plan.indices.values() for i in indices if i.count == held.parts]
    return next((i for i in found if i.sizes == held.lengths), found[0] if found else None)
