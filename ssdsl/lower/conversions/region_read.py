"""Reads of regions: a part that reads windows needs only the rows that its windows reach, and the tiles with them."""

from ssdsl.ir.comm import Exchange
from ssdsl.ir.layout import Shape, Shard, regions_of
from ssdsl.lower.conversions.reshard import exchange


def region_read(index: str, made: Shard, read: Shard | None, shape: Shape, held: tuple[Shard, ...]) -> Exchange | None:
    """The merge of parts that were made as one digit and are read as another; None if all parts have to be joined.

    All parts have to be joined if the two digits do not have equally many regions of one axis; if another digit of that
    axis is `held`, so that positions are not those of the whole axis; and if some part would have no reader, because it
    would then get no gradient. Example: three tiles of 3, 2 and 2 rows, read with one more row on each side:

    >>> from ssdsl.plan.regions import Digit
    >>> made, read = (((0, 3),), ((3, 5),), ((5, 7),)), (((0, 4),), ((2, 6),), ((4, 7),))
    >>> region_read("t", *(Shard(0, Digit(3, at=at)) for at in (made, read)), Shape(((7,),)), held=()).read_by
    ((0, 1), (0, 1, 2), (1, 2))
    """
    axis = shape.axis_of(made.factor)
    if read is None or (read.factor, read.digit.parts) != (made.factor, made.digit.parts) or len(shape.axes[axis]) != 1:
        return None
    if any(shard.factor == made.factor for shard in held):
        return None
    size = shape.factors[made.factor]
    at, reads = (regions_of(shard, size, shard.digit.parts) for shard in (made, read))
    if at is None or reads is None:
        return None
    found = exchange((index,), made.factor, at, reads, shape, held, in_time=True)
    return found if {k for parts in found.read_by for k in parts} == set(range(made.digit.parts)) else None
