"""Splits `--model NAME:WORD,option=value,...` into words with their places, reads the values of options, and reports
wrong ones.

Options of our own are numbers, lists, probabilities and words; those of a config have the types of its fields.
"""

import re
import types
import typing
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from ssdsl.lang.suggest import listed, suggest
from ssdsl.model.load.errors import BadValue, UnknownOption
from ssdsl.record import Record
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source, Span


class SpecWord(Record):
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


class ModelSpec(Record):
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
    """The value of an option. Raises PlanError if its text was refused."""
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
    return PlanError(UnknownOption(word.span(0, len(word.option)), near, model, word.option, known + config))


# -- values of options -------------------------------------------------------------------------------------------------


DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # the word of papers, the word of torch
CHOICES = {  # of options whose values are words
    "dtype": tuple(DTYPES),
    "autocast": tuple(DTYPES),
    "attention": ("sdpa", "eager"),
    "block": ("basic", "bottleneck"),
    "norm": ("none", "batch"),
    "group": ("sequence", "batch"),
    "combine": ("concat", "sum", "product"),
    "decoder": ("linear", "convex", "relu"),
    "task": ("regression", "segmentation"),
}
HIDDEN = {"transformers_version", "architectures", "model_type"}  # fields that are no options
MORE = {"num_labels": (int,), "attn_implementation": (str,), "decoder_start_token_id": (int,)}  # that are no fields
NOTHING = ("none", "None", "null")
TRUTHS = {"true": True, "True": True, "false": False, "False": False}
Kinds = Collection[Any]


class Refused(Record):
    """A text that is no value of an option, with advice what to write instead."""

    change: str


def read_option(option: str, text: str, now: object, words: Sequence[str] = ()) -> object | Refused:
    """The value of an option of our own: one of `words`, if there are some, else of the type of its value `now`."""
    if words:
        others = {other: word for word, other in DTYPES.items() if word in words}  # as torch calls them
        first = next(word for word in words if word != now)
        refused = Refused(f"choose one of {', '.join(words)}: {option}={first}")
        return {**others, **{word: word for word in words}}.get(text, refused)
    if isinstance(now, float):
        return _probability(text, Refused(f"give it a probability, from 0 to below 1: {option}=0.1"))
    parts = text.split("-") if isinstance(now, tuple) else [text]
    if all(part.isdecimal() and 0 < int(part) < 2**31 for part in parts):
        return tuple(map(int, parts)) if isinstance(now, tuple) else int(text)
    whole = "join whole numbers above zero by -" if isinstance(now, tuple) else "give it a whole number above zero"
    return Refused(f"{whole}: {option}={option_text(now)}")


def _probability(text: str, refused: Refused) -> float | Refused:
    digits = text.replace(".", "", 1)
    return float(text) if digits.isdecimal() and digits.isascii() and 0 <= float(text) < 1 else refused


def option_text(value: object) -> str:
    """A value in the form in which `--model` takes it."""
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


# -- fields of a config ------------------------------------------------------------------------------------------------


def known_options(config: Any) -> dict[str, tuple[Any, ...]]:
    """The options of a config by name, each with the types of its values; a field with two names appears twice."""
    kinds = {name: _kinds(hint) for name, hint in _fields(config) if name not in HIDDEN and not name.startswith("_")}
    others = {other: kinds[name] for other, name in config.attribute_map.items() if name in kinds}
    return {**kinds, **others, **MORE}


def own_options(config: Any) -> list[str]:
    """The options that not every config has."""
    every = {name for name, _ in _fields(_plain(config))}
    return [name for name in known_options(config) if name not in every]


def _plain(config: Any) -> Any:
    """A config of transformers' base class, without the fields of a model."""
    return next(cls for cls in reversed(type(config).__mro__) if hasattr(cls, "attribute_map"))()


def _fields(config: Any) -> list[tuple[str, Any]]:
    if is_dataclass(config):
        return [(f.name, f.type) for f in fields(config)]
    return [(name, type(value)) for name, value in vars(config).items()]  # configs of older versions


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The types in a union; a `Literal` stays as it is."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return tuple(kind for part in typing.get_args(hint) for kind in _kinds(part))
    return (hint,)


def read_value(option: str, text: str, kinds: Kinds, now: Any) -> Any:
    """The value of an option, or Refused; `now` is its value in the config, and the example in the advice."""
    if type(None) in kinds and text in NOTHING:
        return None
    for kind in sorted(kinds, key=_order):
        origin = _origin(kind)
        if origin is typing.Literal and text in typing.get_args(kind):
            return text
        if origin is bool and text in TRUTHS:
            return TRUTHS[text]
        if origin in (int, float) and (number := _number(text, origin)) is not None:
            return number
        if origin in (list, tuple) and text and (items := _items(text, typing.get_args(kind))) is not None:
            return items
        if origin is str and not isinstance(now, (bool, int, float, list, tuple)):
            return text
    return Refused(_advice(option, kinds, now))


def _origin(kind: Any) -> Any:
    """The type without its parameters: `list` for `list[int]`."""
    return getattr(kind, "__origin__", kind)


def _order(kind: Any) -> int:
    """The order in which types are tried: numbers before lists, and these before words."""
    origin = _origin(kind)
    return {bool: 0, int: 1, float: 2, list: 4, tuple: 4, str: 5}.get(origin, 3)


def _number(text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError:
        return None


def _items(text: str, inner: tuple[Any, ...]) -> list[Any] | None:
    """The items of `2-2-18-2`; None if one is not of the type `inner`."""
    kinds = [kind for part in inner for kind in _kinds(part) if kind in (int, float, str)]
    items = []
    for word in text.split("-"):
        numbers = [n for kind in (int, float) if kind in kinds or not kinds if (n := _number(word, kind)) is not None]
        if not numbers and kinds and str not in kinds:
            return None
        items.append(numbers[0] if numbers else word)
    return items


def _advice(option: str, kinds: Kinds, now: Any) -> str:
    origins = {_origin(kind) for kind in kinds}
    words = [word for kind in kinds if _origin(kind) is typing.Literal for word in typing.get_args(kind)]
    if words:
        return f"choose one of {', '.join(map(str, words))}: {option}={words[0]}"
    if bool in origins:
        return f"say true or false: {option}={str(not now).lower()}"
    if origins & {list, tuple}:
        return f"join its items by -: {option}={'-'.join(map(str, now)) if isinstance(now, (list, tuple)) else '2-2'}"
    if float in origins:
        return f"give it a number: {option}={now if isinstance(now, (int, float)) else 0.1}"
    if int in origins:
        return f"give it a whole number: {option}={now if isinstance(now, int) else 2}"
    return "write it in a config.json: hf:path/to/config.json"
