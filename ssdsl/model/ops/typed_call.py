"""A captured call with the shapes of its tensors, for the dimension rules and FLOP counts of rows."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ssdsl.model.capture.call import CapturedCall, Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TypedCall:
    """A call of an operator with the shapes of its tensors, before its dimensions are known."""

    call: CapturedCall
    tensors: Mapping[str, Tensor]
    outside: Collection[str] = ()  # the tensors that no operator computes: inputs and weights
    alike: Sequence[CapturedCall] = ()  # the calls of the same operator, itself too, that read the same first tensor

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
