"""Answers questions of the operator table's rows about a call, by the names of its parameters in torch's schema.

`TypedCall` is a captured call, before its dimensions are known. A `Reader` is an operator of a graph, whose dimensions
have the local sizes of one device.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.model.graph import Graph, Operand, Operator, Value, refs_in
from ssdsl.model.memory.saved_tensors import Saved, operands_of
from ssdsl.model.memory.storage import local_strides
from ssdsl.record import Record

Shape = tuple[int, ...]


class TypedCall(Record):
    """A call of an operator with the shapes of its tensors, before its dimensions are known."""

    call: CapturedCall
    tensors: Mapping[str, Tensor]
    outside: Collection[str] = ()  # the tensors that no operator computes: inputs and weights
    alike: Sequence[CapturedCall] = ()  # the calls of the same operator, this one too, that read the same first tensor

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments as given; tensors are `Ref`s."""
        return self.call.args

    def argument(self, name: str) -> Any:
        """An argument by its parameter's name, or its default."""
        return self.call.argument(name)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """All tensors it reads, in the order of its arguments."""
        return tuple(self.tensors[r] for r in self.call.refs())

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Its results that are tensors."""
        return tuple(self.tensors[o] for o in self.call.outputs if o in self.tensors)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of `inputs`."""
        return tuple(t.shape for t in self.inputs)

    @property
    def shape(self) -> Shape:
        """The shape of the first input."""
        return self.inputs[0].shape

    @property
    def rank(self) -> int:
        """The number of axes of the first input."""
        return len(self.shape)

    @property
    def result(self) -> Shape:
        """The shape of the first output."""
        return self.outputs[0].shape

    def axis(self, name: str, rank: int | None = None) -> int:
        """An argument that is the number of an axis, counted from the front: -1 of three axes is 2."""
        return int(self.argument(name) or 0) % max(1, self.rank if rank is None else rank)


AxisOfPart = int | str | tuple[int, ...] | None  # axes of a tensor: one, those that an argument names, several, all


def given_arguments(operator: Operator) -> dict[str, Any]:
    """The arguments that a call gives, with the names of their parameters."""
    target, *args = operator.args
    return target.given(args, dict(operator.kwargs))  # type: ignore[no-any-return]


def parameters(operator: Operator) -> tuple[str, ...]:
    """The parameter's name of each tensor that an operator reads; the tensors of a list share one name."""
    return tuple(name for name, argument in given_arguments(operator).items() for _ in refs_in(argument))


def argument(operator: Operator, name: str) -> Any:
    """An argument by its parameter's name, or its default."""
    target, *args = operator.args
    return target.bound(args, dict(operator.kwargs)).get(name)


class Grouping(Record):
    """A number of groups among the arguments of a call: its position, the axis of the result that has the groups, and
    the size of one."""

    position: int
    axis: int
    size: int


def grouping(operator: Operator) -> Grouping | None:
    """The argument that a part of a call replaces by the number of its own groups; None if there is none."""
    if operator.row.groups is None:
        return None
    name, axis = operator.row.groups
    target, *args = operator.args
    position = [p.name for p in target.parameters].index(name)
    if position >= len(args) or args[position] == 1:
        return None
    channels = math.prod(operator.dims[d].size for d in operator.outputs[0].axes[axis])
    return Grouping(position, axis, channels // args[position])


def axes_of(operator: Operator, parameter: str, axis: AxisOfPart) -> tuple[tuple[int, ...], ...]:
    """The dimensions of each axis of a parameter's tensor that a kernel names.

    `axis` is the number of one, those of several, the argument that chooses them, or None for all. As in a reduction,
    an argument that is not given chooses all of them.
    """
    operands = [o for name, o in zip(parameters(operator), operator.inputs, strict=True) if name == parameter]
    chosen = argument(operator, axis) if isinstance(axis, str) else axis
    if chosen is None or chosen in ((), []):
        return tuple(a for o in operands for a in o.axes)
    numbers = chosen if isinstance(chosen, (tuple, list)) else (chosen,)
    return tuple(o.axes[n] for o in operands for n in numbers if -len(o.axes) <= n < len(o.axes))


def kernel_dims(operator: Operator, *axes: tuple[str, AxisOfPart]) -> tuple[int, ...]:
    """The dimensions in these axes of parameters' tensors (None: all) along which parts run a kernel of their own.

    These are dimensions whose parts need a collective kernel (`combined`), and those that no result has. The kernel of
    a batch norm's batch runs in training, when the batch is combined, and not in evaluation, when it is a dimension
    like any other.
    """
    dims = dict.fromkeys(d for parameter, axis in axes for own in axes_of(operator, parameter, axis) for d in own)
    return tuple(d for d in dims if operator.dims[d].combined or operator.summed(d))


def placed_dims(operator: Operator) -> frozenset[int]:
    """The dimensions along which the operator's kernel gets the position of its part."""
    kernel = operator.row.kernel
    return frozenset(kernel_dims(operator, kernel.axis) if kernel is not None and kernel.is_placed else ())


class Reader(Record):
    """An operator of a graph, with the local size of each of its dimensions on one device."""

    operator: Operator
    graph: Graph
    sizes: Sequence[int]

    def named(self, words: str) -> Saved:
        """The tensors that some words name: inputs by their parameters, outputs as `result`, `result1`.

        `x/y` is `x` if `y` requires a gradient, else nothing. A parameter without a tensor names nothing.
        """
        inputs, outputs = list[str](), list[int]()
        for word in words.split():
            name, _, condition = word.partition("/")
            if condition and not self.requires_grad(condition):
                continue
            if name.startswith("result"):
                outputs.append(int(name.removeprefix("result") or 0))
            else:
                inputs += [o.value for o in self.operands(name)]
        return Saved(operands_of(self.operator, inputs), tuple(dict.fromkeys(outputs)))

    def argument(self, name: str) -> Any:
        """An argument by its parameter's name, or its default."""
        return argument(self.operator, name)

    def operands(self, name: str) -> tuple[Operand, ...]:
        """The tensors given for a parameter: one, several for a list, none."""
        pairs = zip(parameters(self.operator), self.operator.inputs, strict=True)
        return tuple(operand for parameter, operand in pairs if parameter == name)

    def operand(self, name: str) -> Operand:
        """The one tensor given for a parameter."""
        (found,) = self.operands(name)
        return found

    def value(self, name: str) -> Value:
        """The value in the graph of the one tensor given for a parameter."""
        return self.graph.values[self.operand(name).value]

    def requires_grad(self, name: str) -> bool:
        """Whether the tensors given for a parameter require a gradient."""
        return any(self.graph.values[o.value].differentiable for o in self.operands(name))

    def shape(self, axes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """The local shape of a tensor whose axes are made of these dimensions."""
        return tuple(math.prod(self.sizes[d] for d in axis) for axis in axes)

    def strides(self, operand: Operand) -> tuple[int, ...]:
        """The strides of an operand's part."""
        whole = self.graph.values[operand.value].shape
        return local_strides(whole, self.graph.storages[operand.value].strides, self.shape(operand.axes))

    def parts(self, *axes: tuple[str, AxisOfPart]) -> int:
        """The number of parts along the dimensions in these axes that a kernel combines."""
        dims = kernel_dims(self.operator, *axes)
        return math.prod(-(-self.operator.dims[d].size // self.sizes[d]) for d in dims)

    def is_split(self, dim: int) -> bool:
        """Whether the device has only a part of a dimension."""
        return self.sizes[dim] != self.operator.dims[dim].size
