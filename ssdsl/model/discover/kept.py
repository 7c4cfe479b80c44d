"""The cache of experiments' results: in memory, and for the next process in the user's cache folder."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ssdsl.lang.assets import cache_folder
from ssdsl.lang.save import put_whole
from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.model.discover.defined import implementation
from ssdsl.model.discover.found import FoundRule

VERSION = 1  # of the experiments: results of other versions are not used
_in_memory: dict[str, FoundRule] = {}


def folder() -> Path:
    """The folder in which results are kept: `$XDG_CACHE_HOME/ssdsl/operators`, by default in `~/.cache`."""
    return cache_folder("operators")


def key_of(call: CapturedCall, given: Sequence[Tensor]) -> str | None:
    """The key of a result: the operator, its implementation, arguments, shapes and dtypes; None if the implementation
    is unknown."""
    code = implementation(call.target)
    if code is None:
        return None
    arguments = re.sub(r"Ref\([^)]*\)", "Ref", repr((call.args, sorted(call.kwargs.items()))))
    tensors = [(t.shape, t.dtype) for t in given]
    return repr((VERSION, call.target.name(), code, arguments, tensors))


def known(key: str) -> FoundRule | None:
    """The cached result for a key, or None."""
    if key in _in_memory:
        return _in_memory[key]
    try:
        read = json.loads(_path(key).read_text(encoding="utf-8"))
        if read.pop("key") != key:
            return None
        found = read_found(read)
    except (OSError, ValueError, KeyError, TypeError):  # it is not there, or somebody changed it
        return None
    _in_memory[key] = found
    return found


def read_found(read: dict[str, Any]) -> FoundRule:
    """A result as read from JSON."""
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in read.items()}
    return FoundRule(**fields)


def keep(key: str, found: FoundRule) -> None:
    """Keeps a result; if no file can be written, for this process only."""
    _in_memory[key] = found
    path = _path(key)
    text: dict[str, Any] = {"key": key, **asdict(found)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        put_whole(path, json.dumps(text, indent=1))
    except OSError:
        pass


def _path(key: str) -> Path:
    return folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
