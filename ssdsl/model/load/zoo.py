"""`--model NAME:SIZE,option=value`: a model of the zoo."""

import importlib.util

from ssdsl.lang.suggest import suggest
from ssdsl.model.load.errors import BadOption, UnknownModel, UnknownOption, UnknownSize
from ssdsl.model.load.model import Model
from ssdsl.model.load.options import Refused, option_text, read_option
from ssdsl.model.zoo import ZOO
from ssdsl.model.zoo.build import transformers_library
from ssdsl.model.zoo.family import Family, Size
from ssdsl.runtime.bits import Generator
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source, Span


def load_zoo(source: Source, seed: int, generator: Generator, meta: bool | None) -> Model:
    """The model of `NAME:SIZE,option=value,...`. Raises PlanError."""
    name, _, rest = source.text.partition(":")
    if name not in ZOO:
        raise PlanError(_unknown_model(source, name))
    family = ZOO[name]
    size, label = _size(source, name, family, rest)
    if meta is None:
        meta = label not in family.laptop
    if problem := size.problem():
        raise PlanError(BadOption(_span(source, len(name) + 1, rest), name, problem, "change one of these numbers"))
    return size.build(source.text, seed, generator, meta)


def _unknown_model(source: Source, name: str) -> UnknownModel:
    hint = suggest(name, ZOO) or suggest(f"hf:{name}", _of_transformers(name))
    return UnknownModel(_span(source, 0, name), name, hint, ", ".join(ZOO))


def _of_transformers(name: str) -> list[str]:
    """The type of transformers that has this name, if there is one."""
    if importlib.util.find_spec("transformers") is None:
        return []
    return [f"hf:{name}"] if name in transformers_library(name).CONFIG_MAPPING else []


def _size(source: Source, name: str, family: Family, rest: str) -> tuple[Size, str]:
    """The size that `SIZE,option=value,...` describes, and the name it starts from."""
    label, size = family.default, family.sizes[family.default]
    offset = len(name) + 1
    for number, word in enumerate(rest.split(",") if rest else ()):
        if "=" in word:
            size = _changed(source, offset, name, size, word)
        elif number == 0 and word in family.sizes:
            label, size = word, family.sizes[word]
        else:
            raise PlanError(_unknown_size(source, offset, name, family, word))
        offset += len(word) + 1
    return size, label


def _unknown_size(source: Source, offset: int, name: str, family: Family, word: str) -> UnknownSize:
    first, value = next(iter(family.sizes[family.default].numbers.items()))
    example = f"{first}={option_text(value)}"
    place, known = _span(source, offset, word), ", ".join(family.sizes)
    return UnknownSize(place, name, word, suggest(word, family.sizes), known, family.default, example)


def _changed(source: Source, offset: int, name: str, size: Size, word: str) -> Size:
    """The size with one field set as `field=value` says."""
    option, _, text = word.partition("=")
    known = size.numbers
    if option not in known:
        place = _span(source, offset, option)
        raise PlanError(UnknownOption(place, name, option, suggest(option, known), ", ".join(known)))
    value = read_option(option, text, known[option])
    if isinstance(value, Refused):
        place = _span(source, offset + len(option) + 1, text)
        raise PlanError(BadOption(place, name, f"{option} is `{text}`", value.change))
    return size.changed({option: value})


def _span(source: Source, start: int, text: str) -> Span:
    return Span(source, start, start + len(text))
