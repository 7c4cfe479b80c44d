"""Loads a model of the zoo: `--model NAME:SIZE,option=value,...`."""

import importlib.util

import torch

from ssdsl.lang.suggest import suggest
from ssdsl.model.load.batch import axes_of, cast
from ssdsl.model.load.errors import CannotBuild, UnknownModel, UnknownSize
from ssdsl.model.load.hf import BATCHES, CHANGE, Asked, is_large, load_asked, transformers_library
from ssdsl.model.load.hf_tasks import Sizes
from ssdsl.model.load.model import Model
from ssdsl.model.load.spec import (
    CHOICES,
    DTYPES,
    ModelSpec,
    SpecWord,
    accepted,
    option_text,
    read_option,
    unknown_option,
)
from ssdsl.model.load.unmaterialised import made
from ssdsl.model.zoo import EXAMPLES, ZOO
from ssdsl.model.zoo.family import ConfigSize, ModelFamily, ModelSize
from ssdsl.runtime.random.counter_rng import Generator
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Span


def load_zoo(spec: ModelSpec, seed: int, generator: Generator, meta: bool | None) -> Model:
    """The model of a name of the zoo; with `meta` None only laptop sizes have numbers, and changed ones only where they
    are small. Raises PlanError."""
    name = spec.name.text
    if name not in ZOO:
        raise PlanError(_unknown_model(spec))
    family, (first, *others) = ZOO[name], spec.words or (SpecWord(spec.source, "", 0),)
    label = first.text if first.text and "=" not in first.text else family.default
    if label not in family.sizes:
        raise PlanError(_unknown_size(name, family, first))
    size, further = _changed(name, family.sizes[label], others if label == first.text else spec.words)
    if problem := size.problem():
        raise PlanError(CannotBuild(spec.rest, name, problem, CHANGE))
    if meta is None and label not in family.laptop:
        meta = True
    elif meta is None and size is family.sizes[label]:
        meta = False
    if isinstance(size, ConfigSize):
        return load_asked(spec, _asked(name, size), further, seed, generator, meta)
    if further:
        raise unknown_option(name, further[0], tuple(size.numbers))
    return _build(size, spec.source.text, seed, generator, meta)


def _changed(
    name: str, size: ModelSize, words: list[SpecWord] | tuple[SpecWord, ...]
) -> tuple[ModelSize, list[SpecWord]]:
    """The size with the numbers that the options give, and the words that name none of its numbers."""
    further = []
    for word in words:
        option = size.word(word.option) if isinstance(size, ConfigSize) else word.option
        if option in size.numbers:
            now = size.numbers[option]
            value = accepted(name, word, read_option(word.option, word.value, now, CHOICES.get(option, ())))
            size = size.changed({option: value})
        else:
            further.append(word)
    return size, further


def _asked(name: str, size: ConfigSize) -> Asked:
    """The request for a model of transformers in a size of the zoo."""
    n, architecture = size.numbers, size.architecture
    sizes = Sizes(n["batch"], n.get("seq"))
    return Asked(name, architecture.kind, size.config(), sizes, architecture.task, n["dtype"], own=tuple(n))


def _build(size: ModelSize, name: str, seed: int, generator: Generator, meta: bool | None) -> Model:
    """A model of our own with random weights and batches; with `meta`, on the meta device with recipes, with None if it
    is large."""
    dtype = getattr(torch, DTYPES[size.numbers["dtype"]])
    if meta is None:
        with torch.device("meta"):
            meta = is_large(size.net())
    module, recipes = made(size.net, dtype, seed, generator, meta)
    batches = tuple(cast(size.example(torch.Generator().manual_seed(seed + i), meta), dtype) for i in range(BATCHES))
    return Model(name, module, batches, axes_of(module, batches[0], size.AXES), generator, recipes)


def _unknown_model(spec: ModelSpec) -> UnknownModel:
    name = spec.name
    if name.text.endswith(".py"):
        function = spec.words[0].text.partition(":")[0] if spec.words else "function"
        hint = f"one function follows the file: `{name.text}:{function}`"
        return UnknownModel(Span(spec.source, 0, len(spec.source.text)), hint, spec.source.text, _known())
    hint = suggest(name.text, ZOO) or suggest(f"hf:{name.text}", _of_transformers(name.text))
    return UnknownModel(name.span(), hint, name.text, _known())


def _known() -> str:
    """The names of the zoo, and what to do where an installation lacks those of `examples`."""
    lacking = f"; those of papers are files of `examples/models` in the source of ssdsl: copy them to {EXAMPLES}"
    return ", ".join(ZOO) + ("" if EXAMPLES.is_dir() else lacking)


def _of_transformers(name: str) -> list[str]:
    """The type of transformers that has this name, as `hf:TYPE`, if there is one."""
    if importlib.util.find_spec("transformers") is None:
        return []
    return [f"hf:{name}"] if name in transformers_library(name).CONFIG_MAPPING else []


def _unknown_size(name: str, family: ModelFamily, word: SpecWord) -> UnknownSize:
    first, value = next(iter(family.sizes[family.default].numbers.items()))
    example, known = f"{first}={option_text(value)}", ", ".join(family.sizes)
    hint = suggest(word.text, family.sizes)
    return UnknownSize(word.span(), hint, name, word.text, known, family.default, example)
