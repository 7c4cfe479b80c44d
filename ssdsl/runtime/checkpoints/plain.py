"""Converts plain values, such as a scheduler's state, to JSON and back without loss. Reading runs no code.

Numbers of other libraries, as numpy's, come back as Python's.

A value that JSON cannot express becomes an object with one key that starts with `!`:

>>> text = to_json({"milestones": Counter({30: 1}), "betas": (0.9, 0.95), "best": math.inf})
>>> print(text)
{
 "milestones": {
  "!counter": [
   [
    30,
    1
   ]
  ]
 },
 "betas": {
  "!tuple": [
   0.9,
   0.95
  ]
 },
 "best": Infinity
}
>>> from_json(text)
{'milestones': Counter({30: 1}), 'betas': (0.9, 0.95), 'best': inf}
"""

import base64
import io
import json
import math
from collections import Counter
from numbers import Integral, Real
from typing import Any

import torch

from ..errors import EngineError

__all__ = ["from_json", "math", "to_json"]
HELP = "keep numbers, texts, lists, dicts and tensors in it"


def to_json(value: Any) -> str:
    """The JSON text of a value; raises EngineError, with the place, for a value that is not plain."""
    return json.dumps(_plain(value, "it"), indent=1)


def from_json(text: str) -> Any:
    """The value of a text; raises ValueError for a text that `to_json` did not write."""
    return _value(json.loads(text))


def _plain(value: Any, place: str) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case torch.Tensor():
            file = io.BytesIO()
            torch.save(value.detach().cpu().clone(), file)
            return {"!tensor": base64.b64encode(file.getvalue()).decode()}
        case Integral():  # such as numpy's
            return int(value)
        case Real():
            return float(value)
        case bytes():
            return {"!bytes": base64.b64encode(value).decode()}
        case list():
            return [_plain(x, f"{place}[{n}]") for n, x in enumerate(value)]
        case tuple():
            return {"!tuple": [_plain(x, f"{place}[{n}]") for n, x in enumerate(value)]}
        case dict() if type(value) is dict and all(isinstance(k, str) and not k.startswith("!") for k in value):
            return {k: _plain(x, f"{place}[{k!r}]") for k, x in value.items()}
        case dict():
            kind = "!counter" if isinstance(value, Counter) else "!dict"
            return {kind: [[_plain(k, place), _plain(x, f"{place}[{k!r}]")] for k, x in value.items()]}
    raise EngineError(f"a checkpoint cannot hold the {type(value).__name__} at {place.removeprefix('it')}", HELP)


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_value(x) for x in plain]
    if not isinstance(plain, dict):
        return plain
    if len(plain) != 1 or not next(iter(plain)).startswith("!"):
        return {k: _value(x) for k, x in plain.items()}
    ((kind, inner),) = plain.items()
    match kind:
        case "!tensor":
            return torch.load(io.BytesIO(base64.b64decode(inner)), weights_only=True)
        case "!bytes":
            return base64.b64decode(inner)
        case "!tuple":
            return tuple(_value(x) for x in inner)
        case "!dict":
            return {_value(k): _value(x) for k, x in inner}
        case "!counter":
            return Counter({_value(k): _value(x) for k, x in inner})
    raise ValueError(f"`{kind}` is no kind of value")
