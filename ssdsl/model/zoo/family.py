"""A model of the zoo is a family of named sizes: sets of numbers that `--model NAME:SIZE,number=value` may change.

Nothing here needs torch or transformers, so that the zoo can be listed without loading them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform

from ssdsl.model.load.spec import option_text
from ssdsl.record import Record, replace

if TYPE_CHECKING:
    import torch

Numbers = Mapping[str, Any]
MULTIPLES = "batch:statistics hidden:heads heads:keys image:patch msa:head pair:head base:heads base:groups".split()


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class ModelSize:
    """The numbers of a model. A model of our own has a subclass, a frozen dataclass with a field for each number.

    `NET` is the class of its module in `examples/models/nets`, which also makes batches: `example`. `SUMMARY` has the
    most important numbers in words, for a table. `AXES` names axes of its inputs, where convention (`load/batch.py`)
    does not.
    """

    NET: ClassVar[str] = ""
    SUMMARY: ClassVar[str] = ""
    AXES: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    @property
    def numbers(self) -> Numbers:
        """The numbers by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def changed(self, numbers: Numbers) -> Self:
        """The size with some of its numbers replaced."""
        return replace(self, **numbers)

    def problem(self) -> str:
        """The reason why no model can be built from these numbers, or ""; here that one has to be a multiple of
        another. Batch norms may have statistics of their own for each of `statistics` equal parts of the batch."""
        for word, _, part in (pair.partition(":") for pair in MULTIPLES):
            whole, parts = self.numbers.get(word), self.numbers.get(part)
            if isinstance(whole, int) and isinstance(parts, int) and whole % parts:
                return f"{word} = {whole} is no multiple of {part} = {parts}"
        return ""

    def describe(self) -> str:
        """The most important numbers in words, for a table."""
        return self.SUMMARY.format(size=self, **self._texts())

    def _texts(self) -> dict[str, str]:
        return {word: option_text(value) for word, value in self.numbers.items()}

    def net(self) -> "torch.nn.Module":
        """The module of a model of our own. Its batch norms may have statistics of parts of the batch."""
        from ssdsl.model.rewrite.grouped_norm import micro_batch_statistics

        net: torch.nn.Module = resolve_name(f"ssdsl.model.zoo.nets.{self.NET}")(self)
        groups = self.numbers.get("statistics", 1)
        return micro_batch_statistics(net, groups) if groups > 1 else net

    def example(self, draws: "torch.Generator", meta: bool) -> "dict[str, torch.Tensor]":
        """A batch of random numbers; with `meta` the module has no numbers, and large inputs need none either."""
        found: dict[str, torch.Tensor] = resolve_name(f"ssdsl.model.zoo.nets.{self.NET}").example(self, draws, meta)
        return found


class Architecture(Record):
    """A type of transformers (`kind`) trained for a task of `load/hf_tasks.py`, described in our words.

    `fields` maps each word to the fields of the config that are set to its number, none for sizes of the batch alone.
    The functions take the numbers as keywords: `config` gives further fields, `problem` a reason of its own why they
    fit no model.
    """

    kind: str
    task: str
    fields: Mapping[str, str]
    summary: str
    config: Callable[..., dict[str, Any]]
    problem: Callable[..., str] = lambda **_: ""


class ConfigSize(ModelSize):
    """A size of a model of transformers, which is built from its config."""

    architecture: Architecture
    values: Numbers

    @property
    def numbers(self) -> Numbers:
        return self.values

    def changed(self, numbers: Numbers) -> "ConfigSize":
        return replace(self, values={**self.values, **numbers})

    def word(self, option: str) -> str:
        """Our word for a field of the config, if the word sets only this field; otherwise the option itself."""
        return next((word for word, field in self.architecture.fields.items() if field == option), option)

    def problem(self) -> str:
        return self.architecture.problem(**self.numbers) or super().problem()

    def describe(self) -> str:
        return self.architecture.summary.format(**self._texts())

    def config(self) -> dict[str, Any]:
        """The fields of the config that these numbers set."""
        named = {f: self.numbers[word] for word, names in self.architecture.fields.items() for f in names.split()}
        listed = {name: list(value) if isinstance(value, tuple) else value for name, value in named.items()}
        return {**listed, "attn_implementation": self.numbers["attention"], **self.architecture.config(**self.numbers)}


def sizes_of(
    architecture: Architecture, columns: str, rows: Mapping[str, tuple[Any, ...]], **defaults: Any
) -> dict[str, ConfigSize]:
    """Sizes by name, from a table: `columns` are its words, `rows` the numbers of each size, `defaults` the rest."""
    words, every = columns.split(), {"dtype": "fp32", "attention": "sdpa", **defaults}
    return {
        name: ConfigSize(architecture, {**dict(zip(words, row, strict=True)), **every}) for name, row in rows.items()
    }


class ModelFamily(Record):
    """A model's named sizes; those in `laptop` train on a CPU in seconds, the others are built on the meta device."""

    about: str
    sizes: Mapping[str, ModelSize]
    laptop: tuple[str, ...] = ("tiny",)

    @property
    def default(self) -> str:
        return next(iter(self.sizes))
