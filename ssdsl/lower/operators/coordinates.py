"""Turns indices of the plan into splits of an operator: each with a coordinate, in space or time, and a digit."""

from collections.abc import Mapping

from ssdsl.ir.function import Split
from ssdsl.ir.layout import Submesh
from ssdsl.ir.value import Axis, Coordinate, Time
from ssdsl.model.graph import Operator
from ssdsl.plan.plan import Index


def coordinate_of(index: Index, submesh: Submesh) -> Coordinate:
    """The coordinate of an index: an axis, if the mesh has one of its name (parts lie on devices), or a time."""
    return Axis(index.name) if any(name == index.name for name, _ in submesh.axes) else Time(index.name)


class Splits:
    """The splits of the operators of a graph. Equal calls with equal cuts share one tuple: other code relies on its
    id."""

    def __init__(self, signatures: Mapping[str, int]) -> None:
        self.signatures = signatures
        self.known: dict[tuple[object, ...], tuple[Split, ...]] = {}

    def of(self, operator: Operator, indices: tuple[Index, ...], submesh: Submesh) -> tuple[Split, ...]:
        """The same as `operator_splits`, from the table."""
        key = self.signatures[operator.name], indices, submesh.axes
        if key not in self.known:
            self.known[key] = operator_splits(operator, indices, submesh)
        return self.known[key]


def operator_splits(operator: Operator, indices: tuple[Index, ...], submesh: Submesh) -> tuple[Split, ...]:
    """The splits of an operator. Several indices on one dimension cut it one inside the other, the first outermost."""
    left = {d: dim.size for d, dim in enumerate(operator.dims)}
    splits = []
    for index in indices:
        left[index.dim] //= index.count * index.outside  # `outside`: parts around it by indices that are not here
        coordinate = coordinate_of(index, submesh)
        stride = left[index.dim] if index.at is None else 1
        splits.append(Split(coordinate, index.dim, stride, index.count, index.at, index.also))
    return tuple(splits)
