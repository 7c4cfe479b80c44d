"""Reads of regions: a part that reads windows needs only the rows that its windows reach, and the tiles with them."""

from collections.abc import Iterable

from ssdsl.ir.function import Concat
from ssdsl.ir.layout import Cut, Shape, Shard, regions_of
from ssdsl.ir.value import TimeIndex
from ssdsl.plan.regions import Regions


def region_read(
    index: TimeIndex, made: Shard, read: Shard | None, shape: Shape, held: Iterable[Shard]
) -> Concat | None:
    """The merge of parts that were made as one digit and are read as another; None where all parts have to be joined.

    All parts have to be joined if the two digits do not have equally many regions of one axis; if another digit of that
    axis is `held`, so that positions are not those of the whole axis; and if some part would have no reader, because it
    would then get no gradient. Example: three tiles of 3, 2 and 2 rows, read with one more row on each side:

    >>> tiles = [Shard(0, 1, 3, at) for at in ((((0, 3),), ((3, 5),), ((5, 7),)), (((0, 4),), ((2, 6),), ((4, 7),)))]
    >>> found = region_read(TimeIndex("t", 3), *tiles, Shape(((7,),)), held=())
    >>> [found.read_by(k) for k in range(3)]
    [(0, 1), (0, 1, 2), (1, 2)]
    """
    axis = shape.axis_of(made.factor)
    if read is None or (read.factor, read.parts) != (made.factor, made.parts) or len(shape.axes[axis]) != 1:
        return None
    if any(shard.factor == made.factor for shard in held):
        return None
    size = shape.factors[made.factor]
    at, reads = (regions_of(shard, size, index.parts) for shard in (made, read))
    if at is None or reads is None:
        return None
    found = Concat(index, Cut(axis, 1, index.parts, at), reads)
    return found if _are_all_read(found, reads) else None


def _are_all_read(merge: Concat, reads: Regions) -> bool:
    return {k for part in range(len(reads)) for k in merge.read_by(part)} == set(range(merge.index.parts))
