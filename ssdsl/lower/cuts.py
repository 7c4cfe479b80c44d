"""Which digits an operator's indices cut out of its dimensions, and from them the layouts of its tensors."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ssdsl.lower.layout import PARTIAL, REPLICATE, Digit, Layout, Place, Shape
from ssdsl.model.graph import Operand, Operator
from ssdsl.plan.plan import Index

LINEAR = -1  # the dimension number of an index that an operator takes over from partial sums (see spread.py)


@dataclass(frozen=True, slots=True)
class OperatorCut:
    """One index of an operator: dimension `dim` has a digit of this stride and count. `in_space`: it is a mesh axis.

    Of a LINEAR index, `carriers` are the operands that are partial sums along it.
    """

    index: str
    dim: int
    stride: int
    count: int
    in_space: bool
    sizes: tuple[int, ...] | None = None
    carriers: frozenset[str] = frozenset()


def operator_cuts(
    operator: Operator,
    indices: tuple[Index, ...],
    axes: frozenset[str],
    carriers: Mapping[tuple[str, str], frozenset[str]] = MappingProxyType({}),
) -> tuple[OperatorCut, ...]:
    """The cuts of an operator whose mesh has these axes; indices on one dimension cut it again, the first outermost."""
    left = {d: dim.size for d, dim in enumerate(operator.dims)}
    cuts = []
    for index in indices:
        if index.dim != LINEAR:
            left[index.dim] //= index.count
        stride = left.get(index.dim, 1)
        carrying = carriers.get((operator.name, index.name), frozenset())
        in_space = index.name in axes
        cuts.append(OperatorCut(index.name, index.dim, stride, index.count, in_space, index.sizes, carrying))
    return tuple(cuts)


def positions(operand: Operand) -> list[int]:
    """The operator's dimension of each factor of an operand, through its axes."""
    return [dim for axis in operand.axes for dim in axis]


def operand_shape(operator: Operator, operand: Operand) -> Shape:
    return Shape(tuple(tuple(operator.dims[d].size for d in axis) for axis in operand.axes))


def digits_in(cuts: tuple[OperatorCut, ...], operand: Operand) -> Iterator[tuple[OperatorCut, Digit | None]]:
    """Each cut with the digit that it is in an operand, None where the operand does not carry its dimension."""
    places = positions(operand)
    for c in cuts:
        yield c, Digit(places.index(c.dim), c.stride, c.count) if c.dim in places else None


@dataclass(frozen=True, slots=True)
class OperandLayout:
    """What an operator needs or produces of a tensor: the value's layout and its gradient's, and its digits in time.

    `time` has (index, digit, sizes) of the indices that are no mesh axis and cut the tensor; `partial_time` names
    those along which the tensor is a partial sum.
    """

    value: Layout
    gradient: Layout
    time: tuple[tuple[str, Digit, tuple[int, ...] | None], ...]
    partial_time: tuple[str, ...]


def operand_layout(
    operator: Operator,
    cuts: tuple[OperatorCut, ...],
    operand: Operand,
    axes: tuple[tuple[str, int], ...],
    *,
    is_output: bool,
) -> OperandLayout:
    """The table in docs/design.md: a split dimension that the tensor lacks makes outputs, and gradients of inputs,
    partial."""
    value: dict[str, Place] = {}
    gradient: dict[str, Place] = {}
    time = []
    partial_time = []
    for c, digit in digits_in(cuts, operand):
        combined = c.dim != LINEAR and operator.dims[c.dim].combined
        if not c.in_space:
            if digit is not None:
                time.append((c.index, digit, c.sizes))
            elif is_output:
                partial_time.append(c.index)
        elif digit is not None:
            value[c.index] = gradient[c.index] = digit
        elif is_output:
            value[c.index] = REPLICATE if combined else PARTIAL
        elif c.dim == LINEAR:
            # a factor of a partial sum: its gradient is a product with that sum, and so partial too
            (value if operand.value in c.carriers else gradient)[c.index] = PARTIAL
        elif not (operand.once and operator.summed(c.dim)):  # an addend's gradient is whole on every part
            gradient[c.index] = PARTIAL
    return OperandLayout(
        Layout(tuple(value.get(a, REPLICATE) for a, _ in axes)),
        Layout(tuple(gradient.get(a, REPLICATE) for a, _ in axes)),
        tuple(time),
        tuple(partial_time),
    )


def without(layout: Layout, removed: tuple[Digit, ...]) -> Layout:
    """The layout as seen inside one task, whose digits in time are fixed: strides above a removed digit shrink."""
    return Layout(tuple(_shrink(p, removed) if isinstance(p, Digit) else p for p in layout.places))


def _shrink(digit: Digit, removed: tuple[Digit, ...]) -> Digit:
    inner = math.prod(r.count for r in removed if r.factor == digit.factor and r.stride < digit.stride)
    return replace(digit, stride=digit.stride // inner)
