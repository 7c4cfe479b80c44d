"""The options of a model, as in `--model gpt:350m,layers=8,dtype=bf16`: numbers, lists, probabilities, words."""

from dataclasses import dataclass

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # as papers call them, as torch does
CHOICES = {  # of options whose values are words
    "dtype": tuple(DTYPES),
    "attention": ("sdpa", "eager"),
    "block": ("basic", "bottleneck"),
    "norm": ("none", "batch"),
    "group": ("sequence", "batch"),
}


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a text is no value of an option: what to write instead."""

    change: str


def read_option(option: str, text: str, now: object) -> object | Refused:
    """The value of an option, of the kind of its value now."""
    if isinstance(now, str):
        return _word(option, text, now)
    if isinstance(now, float):
        return _probability(text, Refused(f"give it a probability, from 0 to below 1: {option}=0.1"))
    parts = text.split("-") if isinstance(now, tuple) else [text]
    if not all(part.isdecimal() and 0 < int(part) < 2**31 for part in parts):
        return Refused(f"give it whole numbers above zero: {option}={option_text(now)}")
    return tuple(map(int, parts)) if isinstance(now, tuple) else int(text)


def _word(option: str, text: str, now: str) -> str | Refused:
    """One of the option's words; formats are also written as torch does."""
    known = CHOICES[option]
    others = {other: word for word, other in DTYPES.items()} if known == tuple(DTYPES) else {}
    first = next(word for word in known if word != now)
    refused = Refused(f"choose one of {', '.join(known)}: {option}={first}")
    return {**others, **{word: word for word in known}}.get(text, refused)


def _probability(text: str, refused: Refused) -> float | Refused:
    digits = text.replace(".", "", 1)
    return float(text) if digits.isdecimal() and digits.isascii() and 0 <= float(text) < 1 else refused


def option_text(value: object) -> str:
    """A value as it is written in `--model`."""
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)
