"""Splits `--model NAME:WORD,option=value,...` into words with their places, and reports wrong options."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from ssdsl.lang.suggest import listed, suggest
from ssdsl.model.load.errors import BadValue, UnknownOption
from ssdsl.model.load.options import Refused
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source, Span


@dataclass(frozen=True, slots=True)
class SpecWord:
    """A piece of the text between commas, and where it begins."""

    source: Source
    text: str
    start: int

    @property
    def option(self) -> str:
        return self.text.partition("=")[0]

    @property
    def value(self) -> str:
        return self.text.partition("=")[2]

    def span(self, skip: int = 0, length: int | None = None) -> Span:
        """The place of the word without its first `skip` characters, or of `length` characters behind these."""
        start = self.start + skip
        return Span(self.source, start, self.start + len(self.text) if length is None else start + length)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A name and the words behind it."""

    source: Source
    name: SpecWord
    words: tuple[SpecWord, ...]

    @property
    def rest(self) -> Span:
        """The text behind the name."""
        return self.name.span(len(self.name.text) + 1, len(self.source.text) - len(self.name.text) - 1)


def read_spec(source: Source) -> ModelSpec:
    """The name, which ends at the first colon or comma, and the words. The path of a JSON file may have commas in it.

    >>> [word.text for word in read_spec(Source("--model", "hf:a,b/config.json,batch=4")).words]
    ['a,b/config.json', 'batch=4']
    """
    name = re.split("[:,]", source.text, maxsplit=1)[0]
    found = re.compile(r".*?\.json(?=,|$)|[^,]+").finditer(source.text, len(name) + 1)
    return ModelSpec(
        source, SpecWord(source, name, 0), tuple(SpecWord(source, piece[0], piece.start()) for piece in found)
    )


def accepted(model: str, word: SpecWord, value: Any) -> Any:
    """The value of an option. Raises PlanError where its text was refused."""
    if isinstance(value, Refused):
        place = word.span(len(word.option) + 1) if word.value else word.span()
        text = f"`{word.value}`" if word.value else "empty"
        raise PlanError(BadValue(place, model, word.option, text, value.change))
    return value


def unknown_option(
    model: str, word: SpecWord, own: Collection[str], fields: Collection[str] = (), others: Iterable[str] = ()
) -> PlanError:
    """The error for an option that a model does not have.

    The model has its `own` options, and the `fields` of its config, which are listed; `others` are further names that
    the user may have meant.
    """
    near, known = suggest(word.option, [*others, *own]), listed(own, len(own))
    config = f"; its config has {listed(fields, 16)}" if fields else ""
    return PlanError(UnknownOption(word.span(0, len(word.option)), model, word.option, near, known + config))
