"""Caches the rules that experiments found: in memory, and for the next process in the user's cache folder."""

import contextlib
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ssdsl.lang.assets import cache_folder
from ssdsl.lang.save import put_whole
from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.model.discover.defined import implementation
from ssdsl.model.discover.found import FoundRule

VERSION = 3  # of the experiments: rules of other versions are not used
_in_memory: dict[str, FoundRule] = {}


def folder() -> Path:
    """The folder of the cache: `$XDG_CACHE_HOME/ssdsl/operators`, by default in `~/.cache`."""
    return cache_folder("operators")


def key_of(call: CapturedCall, given: Sequence[Tensor]) -> str | None:
    """The key of a rule: the operator, its implementation, arguments, shapes and dtypes; None if the implementation
    is unknown."""
    code = implementation(call.target)
    if code is None:
        return None
    arguments = re.sub(r"Ref\([^)]*\)", "Ref", repr((call.args, sorted(call.kwargs.items()))))
    tensors = [(t.shape, t.dtype) for t in given]
    return repr((VERSION, call.target.name(), code, arguments, tensors))


def cached_rule(key: str) -> FoundRule | None:
    """The cached rule for a key, or None."""
    if key in _in_memory:
        return _in_memory[key]
    try:
        was, found = msgspec.json.decode(_path(key).read_bytes(), type=tuple[str, FoundRule])
    except (OSError, ValueError):  # it is not there, or somebody changed it
        return None
    if was != key:
        return None
    _in_memory[key] = found
    return found


def cache_rule(key: str, found: FoundRule) -> None:
    """Puts a rule into the cache; if no file can be written, for this process only."""
    _in_memory[key] = found
    path = _path(key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        put_whole(path, msgspec.json.encode((key, found)))


def _path(key: str) -> Path:
    return folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
