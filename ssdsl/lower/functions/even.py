"""Where a digit lies in a part of a tensor, unless unequal parts make the place vary."""

from ssdsl.ir.layout import Cut, Shape, Shard, cut
from ssdsl.ir.value import TimeIndex
from ssdsl.lower.errors import UnevenOutside
from ssdsl.plan.plan import Plan
from ssdsl.text.diagnostic import PlanError


def even_cut(plan: Plan, time: tuple[TimeIndex, ...], shape: Shape, shard: Shard, fixed: list[Shard]) -> Cut:
    """The place of a digit in the part that carries one value of each of the `fixed` digits; raises PlanError as
    `check_even` does."""
    check_even(plan, time, shape, shard.factor, tuple(fixed))
    return cut(shape, shard, tuple(fixed))


def check_even(plan: Plan, time: tuple[TimeIndex, ...], shape: Shape, factor: int, fixed: tuple[Shard, ...]) -> None:
    """Raises PlanError where a factor lies behind one of unequal parts in an axis that a reshape has merged."""
    uneven = [t for t in time if t.sizes]
    for held in fixed:
        index = next((t for t in uneven if _is_digit_of(t, held, shape)), None)
        if index is not None and held.factor < factor and shape.axis_of(held.factor) == shape.axis_of(factor):
            span = next((i.span for found in plan.indices.values() for i in found if i.name == index.name), None)
            raise PlanError(UnevenOutside(span, index.name, " · ".join(map(str, shape.axes[shape.axis_of(factor)]))))


def _is_digit_of(index: TimeIndex, held: Shard, shape: Shape) -> bool:
    return held.parts == index.parts and sum(index.sizes or ()) == shape.factors[held.factor]
