"""A model of the zoo: a family of named sizes, each a set of numbers that `--model NAME:SIZE,number=value` may change.

Nothing here needs torch or transformers, so that the zoo can be listed without loading them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from ssdsl.model.load.model import Model
    from ssdsl.runtime.bits import Generator


class Size(Protocol):
    """The numbers of a model, by name."""

    @property
    def numbers(self) -> Mapping[str, Any]: ...

    def changed(self, numbers: Mapping[str, Any]) -> "Size":
        """The size with some of its numbers replaced."""
        ...

    def problem(self) -> str:
        """Why no model can be built from these numbers, or nothing."""
        ...

    def parameters(self) -> int:
        """How many numbers the model learns."""
        ...

    def describe(self) -> str:
        """The numbers that matter, for a table."""
        ...

    def build(self, name: str, seed: int, generator: "Generator", meta: bool) -> "Model":
        """The model, on the meta device with recipes if asked; may need transformers."""
        ...


@dataclass(frozen=True, slots=True)
class OwnSize:
    """A size of a model whose module is ours: a dataclass whose fields are its numbers."""

    @property
    def numbers(self) -> Mapping[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def changed(self, numbers: Mapping[str, Any]) -> Self:
        return replace(self, **numbers)


@dataclass(frozen=True, slots=True)
class Family:
    """A model's named sizes; those in `laptop` train on a CPU in seconds, the others are built on the meta device."""

    about: str
    sizes: Mapping[str, Size]
    laptop: tuple[str, ...]

    @property
    def default(self) -> str:
        return next(iter(self.sizes))
