"""Where the parts of an operator run: the coordinate of an index, and the digits that the indices of a plan cut."""

from collections.abc import Mapping

from ssdsl.ir.function import Split
from ssdsl.ir.layout import Submesh
from ssdsl.ir.value import Axis, Coordinate, Time
from ssdsl.model.graph import Operator
from ssdsl.plan.plan import Index


def coordinate_of(index: Index, submesh: Submesh) -> Coordinate:
    """Names join: an index that is an axis of the mesh cuts in space, any other in time."""
    return Axis(index.name) if any(name == index.name for name, _ in submesh.axes) else Time(index.name)


class Splits:
    """The splits of the operators of a graph: found once for equal calls that are cut alike, which then share them."""

    def __init__(self, signatures: Mapping[str, int]) -> None:
        self.signatures = signatures
        self.known: dict[tuple[object, ...], tuple[Split, ...]] = {}

    def of(self, operator: Operator, indices: tuple[Index, ...], submesh: Submesh) -> tuple[Split, ...]:
        """As `operator_splits`."""
        key = self.signatures[operator.name], indices, submesh.axes
        if key not in self.known:
            self.known[key] = operator_splits(operator, indices, submesh)
        return self.known[key]


def operator_splits(operator: Operator, indices: tuple[Index, ...], submesh: Submesh) -> tuple[Split, ...]:
    """The splits of an operator; indices on one dimension cut it again, the first outermost."""
    left = {d: dim.size for d, dim in enumerate(operator.dims)}
    splits = []
    for index in indices:
        left[index.dim] //= index.count * index.outside
        coordinate = coordinate_of(index, submesh)
        stride = left[index.dim] if index.at is None else 1
        splits.append(Split(coordinate, index.dim, stride, index.count, index.at, index.also))
    return tuple(splits)
