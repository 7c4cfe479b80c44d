"""A call as captured, before its dimensions are known."""

from typing import Any

from ssdsl.model.graph import Order, refs_in
from ssdsl.record import Record


class Tensor(Record):
    """The shape and dtype of a value, and whether a gradient can flow through it."""

    shape: tuple[int, ...]
    dtype: str
    differentiable: bool = False

    @property
    def has_fractions(self) -> bool:
        """Whether its numbers are no integers, so that they may have gradients."""
        return self.dtype.startswith(("float", "bfloat", "complex"))


class CapturedCall(Record):
    """One captured operator call; tensors in `args` and `kwargs` are `Ref`s, `outputs` are the names of its results.

    `orders` has the memory order of each tensor in `refs` on one device, if the operator depends on it.
    """

    name: str
    kind: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    path: str
    source: str
    outputs: tuple[str, ...]
    orders: tuple[Order, ...] = ()

    def refs(self) -> tuple[str, ...]:
        """The names of all tensors it reads, in the order of its arguments."""
        return tuple(refs_in((self.args, tuple(self.kwargs.values()))))

    def argument(self, name: str) -> Any:
        """An argument by the name that the operator's schema gives it, or its default."""
        from ssdsl.model.capture.overloads import target_of  # loads torch; a graph is read without it

        return target_of(self.target).bound(self.args, self.kwargs).get(name)
