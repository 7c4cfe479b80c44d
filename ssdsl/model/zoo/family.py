"""A model of the zoo: a family of named sizes, each a set of numbers that `--model NAME:SIZE,number=value` may change.

Nothing here needs torch or transformers, so that the zoo can be listed without loading them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ssdsl.model.load.options import option_text

if TYPE_CHECKING:
    import torch

Numbers = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Size:
    """The numbers of a model: of one of our own, the fields of a subclass.

    `AXES` names axes of its inputs that are not called by convention (`load/batch.py`).
    """

    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @property
    def numbers(self) -> Numbers:
        """All of them by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def changed(self, numbers: Numbers) -> Self:
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
class Architecture:
    """A type of transformers (`kind`) trained for a task of `load/hf_tasks.py`, described in our words.

    `fields` has for each word the fields of the config that are set to its number, none for sizes of the batch alone.
    The functions take the numbers as keywords: `problem` says why they fit no model, `parameters` how many numbers it
    learns, and `config` gives further fields.
    """

    kind: str
    task: str
    fields: Mapping[str, str]
    summary: str
    problem: Callable[..., str]
    parameters: Callable[..., int]
    config: Callable[..., dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ConfigSize(Size):
    """A size of a model of transformers, which is built from its config."""

    architecture: Architecture
    values: Numbers

    @property
    def numbers(self) -> Numbers:
        return self.values

    def changed(self, numbers: Numbers) -> "ConfigSize":
        return replace(self, values={**self.values, **numbers})

    def word(self, option: str) -> str:
        """Our word for a field of the config, if that is all that the word sets; otherwise the option itself."""
        return next((word for word, field in self.architecture.fields.items() if field == option), option)

    def problem(self) -> str:
        return self.architecture.problem(**self.numbers)

    def parameters(self) -> int:
        return self.architecture.parameters(**self.numbers)

    def describe(self) -> str:
        return self.architecture.summary.format(**{word: option_text(value) for word, value in self.numbers.items()})

    def config(self) -> dict[str, Any]:
        """The fields of the config that these numbers set."""
        named = {f: self.numbers[word] for word, names in self.architecture.fields.items() for f in names.split()}
        listed = {name: list(value) if isinstance(value, tuple) else value for name, value in named.items()}
        return {**listed, "attn_implementation": self.numbers["attention"], **self.architecture.config(**self.numbers)}


def sizes_of(
    architecture: Architecture, columns: str, rows: Mapping[str, tuple[Any, ...]], **defaults: Any
) -> dict[str, ConfigSize]:
    """A table of sizes: the words of its columns, and a row for each size."""
    words, every = columns.split(), {"dtype": "fp32", "attention": "sdpa", **defaults}
    return {
        name: ConfigSize(architecture, {**dict(zip(words, row, strict=True)), **every}) for name, row in rows.items()
    }


@dataclass(frozen=True, slots=True)
class Family:
    """A model's named sizes; those in `laptop` train on a CPU in seconds, the others are built on the meta device."""

    about: str
    sizes: Mapping[str, Size]
    laptop: tuple[str, ...]

    @property
    def default(self) -> str:
        return next(iter(self.sizes))
