"""`--model hf:...`: what the text asks for, read step by step, each mistake with its place."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ssdsl.lang.suggest import listed, suggest
from ssdsl.model.load.errors import BadConfig, BadField, ConfigUnreadable, NoTask, UnknownField, UnknownType
from ssdsl.model.load.hf_build import build
from ssdsl.model.load.hf_tasks import TASKS, NoExample, Sizes, positions, tasks_of
from ssdsl.model.load.model import Model
from ssdsl.model.load.options import (
    DTYPES,
    NUMBERS,
    Refused,
    known_options,
    own_options,
    read_dtype,
    read_size,
    read_value,
)
from ssdsl.model.zoo.build import silent, transformers_library
from ssdsl.runtime.bits import Generator
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source, Span

PREFIX = "hf:"
OWN = ("task", "batch", "seq", "target", "pixels", "dtype", "autocast")
CHANGE = "change one of these numbers"


@dataclass(frozen=True, slots=True)
class _Word:
    """A piece of the text between commas, and where it begins."""

    text: str
    start: int

    def span(self, source: Source, skip: int = 0, length: int | None = None) -> Span:
        start = self.start + skip
        return Span(source, start, start + (len(self.text) - skip if length is None else length))

    @property
    def option(self) -> str:
        return self.text.partition("=")[0]

    @property
    def value(self) -> str:
        return self.text.partition("=")[2]


@dataclass(frozen=True, slots=True)
class _Own:
    """The options that are not the config's."""

    sizes: Sizes = field(default_factory=Sizes)
    task: str | None = None
    dtype: str | None = None
    autocast: str | None = None


def load_hf(source: Source, seed: int, generator: Generator, meta: bool | None) -> Model:
    """The model of `hf:TYPE,option=value,...` or `hf:path/to/config.json,...`; nothing is downloaded.

    Raises PlanError.
    """
    library = transformers_library(source.text)
    first, words = _words(source.text)
    kind, given = _described(library, source, first)
    own, fields = _options(library, source, kind, given, words)
    whole = Span(source, len(PREFIX), len(source.text))
    try:
        config = _config(library, kind, {**given, **fields})
    except Exception as error:  # transformers raises its own, of any type
        raise PlanError(BadConfig(whole, kind, _reason(error), CHANGE)) from error
    own = replace(own, task=_task(library, source, kind, config, own.task, words))
    _check_length(source, kind, config, own, words)
    return _built(source, kind, config, own, seed, generator, meta)


def _built(
    source: Source, kind: str, config: Any, own: _Own, seed: int, generator: Generator, meta: bool | None
) -> Model:
    whole = Span(source, len(PREFIX), len(source.text))
    assert own.task is not None
    dtype = own.dtype or _written(getattr(config, "dtype", None))
    cast = getattr(torch, DTYPES[own.autocast]) if own.autocast else None
    sizes = own.sizes
    try:
        return build(
            source.text, config, own.task, sizes, dtype=dtype, autocast=cast, seed=seed, generator=generator, meta=meta
        )
    except NoExample as error:
        change = "write a function that returns the module and its inputs: path/to/file.py:function"
        raise PlanError(NoTask(whole, f"no example batch is known for `{kind}`: {error}", "", "", change)) from error
    except PlanError:
        raise
    except Exception as error:  # whatever a constructor raises
        raise PlanError(BadConfig(whole, kind, _reason(error), CHANGE)) from error


def _words(spec: str) -> tuple[_Word, list[_Word]]:
    """What names the model, and the options behind it; a path to a file may have commas in it."""
    start, rest = len(PREFIX), spec.removeprefix(PREFIX)
    end = rest.find(".json") + len(".json") if ".json" in rest else rest.find(",") if "," in rest else len(rest)
    first = _Word(rest[:end], start)
    words, at = [], start + end + 1
    for text in rest[end + 1 :].split(",") if rest[end + 1 :] else []:
        words.append(_Word(text, at))
        at += len(text) + 1
    return first, words


# -- the config --------------------------------------------------------------------------------------------------------


def _described(library: Any, source: Source, first: _Word) -> tuple[str, dict[str, Any]]:
    """The type of the model and what its config file says."""
    path, is_type = Path(first.text), first.text in library.CONFIG_MAPPING
    if path.suffix == ".json" or "/" in first.text or (first.text and not is_type and path.is_dir()):
        return _read(library, source, first, path / "config.json" if path.is_dir() else path)
    _check_type(library, source, first, first.text)
    return first.text, {}


def _check_type(library: Any, source: Source, place: _Word, name: str) -> None:
    known = list(library.CONFIG_MAPPING)
    if name not in known:
        change = "choose one of these, or give a config: hf:path/to/config.json"
        hint = suggest(name, known)
        raise PlanError(UnknownType(place.span(source), name, hint, library.__version__, len(known), change))


def _read(library: Any, source: Source, first: _Word, path: Path) -> tuple[str, dict[str, Any]]:
    change = "give the path of a model's config.json"
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        change = "nothing is downloaded: give the path of the model's config.json, or a type such as hf:llama"
        raise PlanError(ConfigUnreadable(first.span(source), str(path), "no such file", change)) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise PlanError(ConfigUnreadable(first.span(source), str(path), reason.lower(), change)) from error
    except json.JSONDecodeError as error:
        where = f"it is no JSON: {error.msg.lower()} at line {error.lineno}, column {error.colno}"
        raise PlanError(ConfigUnreadable(first.span(source), str(path), where, "correct the file")) from error
    if not isinstance(found, dict) or not isinstance(found.get("model_type"), str):
        change = 'add the type, as in {"model_type": "llama"}'
        raise PlanError(ConfigUnreadable(first.span(source), str(path), "it has no `model_type`", change))
    _check_type(library, source, first, found["model_type"])
    return found["model_type"], found


def _config(library: Any, kind: str, fields: Mapping[str, Any]) -> Any:
    with silent(library):
        return library.CONFIG_MAPPING[kind].from_dict({k: v for k, v in fields.items() if k != "model_type"})


# -- options -----------------------------------------------------------------------------------------------------------


def _options(
    library: Any, source: Source, kind: str, given: Mapping[str, Any], words: Iterable[_Word]
) -> tuple[_Own, dict[str, Any]]:
    """The options of our own, and the config's by their fields' names."""
    plain = library.CONFIG_MAPPING[kind]()
    known = known_options(plain)
    own, fields = _Own(), dict[str, Any]()
    for word in words:
        option, text = word.option, word.value
        if option in OWN:
            own = _with(source, kind, own, word)
            continue
        if option not in known:
            near, every = suggest(option, [*known, *OWN]), listed(own_options(plain), 16)
            place = word.span(source, 0, len(option))
            raise PlanError(UnknownField(place, kind, option, near, every, listed(OWN)))
        name = plain.attribute_map.get(option, option)
        value = read_value(option, text, known[option], given.get(name, getattr(plain, name, None)))
        fields[name] = _accepted(source, kind, word, value)
    return own, fields


def _with(source: Source, kind: str, own: _Own, word: _Word) -> _Own:
    """Our options with one more."""
    option, text = word.option, word.value
    if option in NUMBERS:
        size = _accepted(source, kind, word, read_size(option, text))
        return replace(own, sizes=replace(own.sizes, **{option: size}))
    if option == "task":
        refused = Refused(f"choose one of {', '.join(TASKS)}: task=causal")
        return replace(own, task=_accepted(source, kind, word, text if text in TASKS else refused))
    value = _accepted(source, kind, word, read_dtype(option, text))
    return replace(own, dtype=value) if option == "dtype" else replace(own, autocast=value)


def _accepted(source: Source, kind: str, word: _Word, value: Any) -> Any:
    if isinstance(value, Refused):
        place = word.span(source, len(word.option) + 1) if word.value else word.span(source)
        text = f"`{word.value}`" if word.value else "empty"
        raise PlanError(BadField(place, kind, word.option, text, value.change))
    return value


def _task(library: Any, source: Source, kind: str, config: Any, asked: str | None, words: Iterable[_Word]) -> str:
    tasks = tasks_of(library, config)
    if asked in tasks:
        return asked
    if not asked and tasks:
        return tasks[0]
    known = f"it has {listed(tasks)}" if tasks else f"known are {listed(TASKS)}"
    place = next((w.span(source) for w in words if w.option == "task"), Span(source, len(PREFIX), len(source.text)))
    fact = f"`{kind}` has no model for the task `{asked}`" if asked else f"`{kind}` has no model for any task"
    change = f"choose one of these: task={tasks[0]}" if tasks else "write a function: path/to/file.py:function"
    raise PlanError(NoTask(place, fact, "", known, change))


def _check_length(source: Source, kind: str, config: Any, own: _Own, words: Iterable[_Word]) -> None:
    most = positions(config)
    for word in words:
        if word.option in ("seq", "target") and most is not None and int(word.value) > most:
            fact = f"{word.option} = {word.value} is longer than its {most} positions"
            change = f"choose {word.option}={most} at most, or max_position_embeddings={word.value}"
            raise PlanError(BadConfig(word.span(source), kind, fact, change))


def _written(dtype: Any) -> str:
    """A config's format of weights, as the zoo calls it."""
    name = str(dtype).removeprefix("torch.")
    return next((word for word, other in DTYPES.items() if other == name), "fp32")


def _reason(error: Exception) -> str:
    """The last line of what a library says."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return re.sub(r"^\w*Error: ", "", lines[-1].rstrip(".")) if lines else type(error).__name__
