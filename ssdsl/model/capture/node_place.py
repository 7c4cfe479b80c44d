"""Finds the origin of a node of an exported graph: the module that made the call, and the line of the user's code."""

import re

from torch import fx

from ssdsl.model.capture.source_line import Place, innermost, is_own
from ssdsl.text.source import Span


def path_of(node: fx.Node) -> str:
    """The path of the innermost module that made the call; `trunk#1` for the second call of a module."""
    stack = node.meta.get("nn_module_stack") or {}
    path = ""
    for key, (name, _) in stack.items():
        last = name.removeprefix("module").removeprefix(".")
        call = re.search(r"@(\d+)$", str(key))
        if call:
            path = _number(path, last, int(call[1]))
        else:
            path = _extend(path, last)
    return path


def _extend(path: str, full: str) -> str:
    """`full` below `path`, whose segments may carry call numbers."""
    plain = re.sub(r"#\d+", "", path)
    plain_full = re.sub(r"@\d+", "", full)
    if plain and plain_full.startswith(plain + "."):
        return path + plain_full[len(plain) :]
    return path if plain_full == plain else plain_full


def _number(path: str, full: str, count: int) -> str:
    """Marks a later call of a module, unless the module that called it was itself called that often."""
    repeats = f"#{count}" in re.findall(r"#\d+", path)
    return _extend(path, full) if repeats else f"{_extend(path, full)}#{count}"


def place_of(node: fx.Node) -> Place | None:
    """The innermost line of the user's code in which the call was made."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    return innermost(((file, int(line)) for file, line in frames), path_of(node))


def source_of(node: fx.Node) -> str:
    """The line of `place_of` as `name.py:12`, or `unknown`."""
    return str(place_of(node) or "unknown")


def span_of(node: fx.Node) -> Span | None:
    """The span of the line of `place_of`; None unless it is the user's and its file can be read."""
    place = place_of(node)
    return place.span() if place is not None and is_own(place.file) else None
