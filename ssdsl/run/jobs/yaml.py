"""YAML of plain data, in block style."""

import json
import re
from collections.abc import Iterator
from typing import Any

PLAIN = re.compile(r"[A-Za-z/][\w./-]*")
WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}  # texts that YAML reads as another type


def yaml_text(data: Any) -> str:
    """A document of mappings, lists, texts, numbers and booleans.

    >>> print(yaml_text({"kind": "Job", "args": ["-n", "8"], "spec": {"replicas": 2}}), end="")
    kind: Job
    args:
      - "-n"
      - "8"
    spec:
      replicas: 2
    """
    return "\n".join(_lines(data)) + "\n"


def _lines(data: Any) -> Iterator[str]:
    match data:
        case dict():
            for key, value in data.items():
                yield from _entry(f"{_scalar(key)}:", value)
        case list() | tuple():
            for value in data:
                inner = list(_lines(value)) if isinstance(value, dict | list | tuple) and value else [_scalar(value)]
                yield f"- {inner[0]}"
                yield from (f"  {line}" for line in inner[1:])
        case _:
            yield _scalar(data)


def _entry(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict | list | tuple) and value:
        yield key
        yield from (f"  {line}" for line in _lines(value))
    else:
        yield f"{key} {_scalar(value)}"


def _scalar(value: Any) -> str:
    """A value on one line. A text that YAML could misread is quoted as in JSON, which YAML reads too."""
    if isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in WORDS:
        return value
    return json.dumps(value)
