"""The options of a model, as in `--model gpt:350m,layers=8,dtype=bf16`: numbers, lists, probabilities, words."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # as papers call them, as torch does


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a text is no value of an option: what to write instead."""

    change: str


def choice(words: Iterable[str], default: str) -> Any:
    """A field whose value is one of some words; a mapping gives their other names."""
    others = {other: word for word, other in words.items()} if isinstance(words, Mapping) else {}
    return field(
        default=default, metadata={"words": {**{word: word for word in words}, **others}, "known": tuple(words)}
    )


def read_option(size: Any, option: str, text: str) -> object | Refused:
    """The value of an option of a size, of the kind that its default is."""
    now, metadata = getattr(size, option), next(f.metadata for f in fields(size) if f.name == option)
    if metadata:
        first = next(word for word in metadata["known"] if word != now)
        refused = Refused(f"choose one of {', '.join(metadata['known'])}: {option}={first}")
        words: Mapping[str, str] = metadata["words"]
        return words.get(text, refused)
    if isinstance(now, float):
        return _probability(text, Refused(f"give it a probability, from 0 to below 1: {option}=0.1"))
    parts = text.split("-") if isinstance(now, tuple) else [text]
    if not all(part.isdecimal() and 0 < int(part) < 2**31 for part in parts):
        return Refused(f"give it whole numbers above zero: {option}={option_text(now)}")
    return tuple(map(int, parts)) if isinstance(now, tuple) else int(text)


def _probability(text: str, refused: Refused) -> float | Refused:
    digits = text.replace(".", "", 1)
    return float(text) if digits.isdecimal() and digits.isascii() and 0 <= float(text) < 1 else refused


def option_text(value: object) -> str:
    """A value as it is written in `--model`."""
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)
