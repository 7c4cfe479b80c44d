"""Where a digit lies in a part of a tensor, unless unequal parts make the place vary."""

from collections.abc import Iterable

from ssdsl.ir.layout import Cut, Layout, Shape, Shard, cut, is_apart
from ssdsl.lower.errors import UnevenOutside
from ssdsl.plan.plan import Index, Plan
from ssdsl.text.diagnostic import PlanError


def even_cut(plan: Plan, shape: Shape, shard: Shard, fixed: Iterable[Shard]) -> Cut:
    """The place of a digit in the part that carries one value of each of the `fixed` digits; raises PlanError as
    `check_even` does."""
    check_even(plan, shape, shard, fixed := tuple(fixed))
    return cut(shape, shard, fixed)


def check_even(plan: Plan, shape: Shape, shard: Shard, fixed: Iterable[Shard]) -> None:
    """Raises PlanError where a digit has no one place among these, in an axis that a reshape has merged."""
    for held in fixed:
        if is_apart(shard, (held,), shape):
            continue
        index = _index_of(plan, held if held.factor < shard.factor else shard)
        merged = " · ".join(map(str, shape.axes[shape.axis_of(shard.factor)]))
        raise PlanError(UnevenOutside(index.span if index else None, index.name if index else "?", merged))


def check_path(plan: Plan, shape: Shape, before: Layout, after: Layout) -> None:
    """Raises PlanError where neither of two digits has one place while the other is held, and one of them goes."""
    for layout in (before, after):
        for shard in layout.shards():
            others = [s for s in layout.shards() if not is_apart(s, (shard,), shape)]
            if {shard, *others} & ({*before.shards()} ^ {*after.shards()}):
                check_even(plan, shape, shard, others)


def _index_of(plan: Plan, held: Shard) -> Index | None:
    """The index that cuts into such parts."""
    found = [i for record in plan.operators.values() for i in record.indices if i.count == held.parts]
    return next((i for i in found if i.sizes == held.lengths), found[0] if found else None)
