"""The place of a digit in a part of a tensor, or an error where unequal parts make the place vary."""

from collections.abc import Iterable

from ssdsl.ir.layout import Cut, Layout, Shape, Shard, cut, is_apart
from ssdsl.lower.errors import UnevenOutside
from ssdsl.plan.plan import Index, Plan
from ssdsl.text.diagnostic import PlanError


def even_cut(plan: Plan, shape: Shape, shard: Shard, fixed: Iterable[Shard]) -> Cut:
    """The place of a digit in a part that has one value of each of the `fixed` digits. Raises PlanError as
    `check_even` does."""
    check_even(plan, shape, shard, fixed := tuple(fixed))
    return cut(shape, shard, fixed)


def check_even(plan: Plan, shape: Shape, shard: Shard, fixed: Iterable[Shard]) -> None:
    """Raises PlanError if the place of a digit varies with the value of a fixed one: both lie in one axis, which a
    reshape has merged, and parts are unequal."""
    for held in fixed:
        if is_apart(shard, (held,), shape):
            continue
        index = _index_of(plan, held if held.factor < shard.factor else shard)
        merged = " · ".join(map(str, shape.axes[shape.axis_of(shard.factor)]))
        raise PlanError(UnevenOutside(index.span if index else None, index.name if index else "?", merged))


def check_path(plan: Plan, shape: Shape, before: Layout, after: Layout) -> None:
    """Raises PlanError if two digits of a layout share an axis with unequal parts, and a path from `before` to
    `after` removes or adds one of them."""
    for layout in (before, after):
        for shard in layout.shards():
            others = [s for s in layout.shards() if not is_apart(s, (shard,), shape)]
            if {shard, *others} & ({*before.shards()} ^ {*after.shards()}):
                check_even(plan, shape, shard, others)


def _index_of(plan: Plan, held: Shard) -> Index | None:
    """An index of the plan that cuts into as many parts as a digit has, if possible of the same sizes."""
    found = [i for record in plan.operators.values() for i in record.indices if i.digit.parts == held.digit.parts]
    return next((i for i in found if i.digit.sizes == held.digit.sizes), found[0] if found else None)
