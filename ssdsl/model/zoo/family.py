"""A model of the zoo: a family of named sizes, each a set of numbers that `--model NAME:SIZE,number=value` may change.

Nothing here needs torch or transformers, so that the zoo can be listed without loading them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Size:
    """The numbers of a model: of one of our own, the fields of a subclass.

    `AXES` names axes of its inputs that are not called by convention (`load/batch.py`).
    """

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @property
    def numbers(self) -> Mapping[str, Any]:
        """All of them by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def changed(self, numbers: Mapping[str, Any]) -> Self:
        """The size with some of its numbers replaced."""
        return replace(self, **numbers)

    def problem(self) -> str:
        """Why no model can be built from these numbers, or nothing."""
        return ""

    def parameters(self) -> int:
        """How many numbers the model learns."""
        raise NotImplementedError

    def describe(self) -> str:
        """The numbers that matter, for a table."""
        raise NotImplementedError

    def net(self) -> "torch.nn.Module":
        """The module of a model of our own."""
        raise NotImplementedError

    def example(self, draws: "torch.Generator", meta: bool) -> "dict[str, torch.Tensor]":
        """A batch of random numbers for it; with `meta`, for a module without numbers, it may have none either."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Family:
    """A model's named sizes; those in `laptop` train on a CPU in seconds, the others are built on the meta device."""

    about: str
    sizes: Mapping[str, Size]
    laptop: tuple[str, ...]

    @property
    def default(self) -> str:
        return next(iter(self.sizes))
