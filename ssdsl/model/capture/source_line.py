"""Finds places in the user's own code: the file and line, and the module that was running, or that made a call of an
exported graph."""

import inspect
import linecache
import re
import sys
import traceback
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import fx

from ssdsl.record import Record
from ssdsl.text.source import Source, Span

TORCH = str(Path(torch.__file__).parent)
PACKAGE = Path(__file__).parent.parent.parent
OURS = tuple(str(PACKAGE / part) for part in ("model", "runtime", "run"))


class Place(Record):
    """A line of a file, and the path of the module whose code it is ("" where that is the model itself)."""

    file: str
    line: int
    path: str = ""

    @property
    def where(self) -> str:
        """The module, for people."""
        return module_name(self.path)

    def span(self) -> Span | None:
        """The text of the line; None if the file cannot be read."""
        lines = linecache.getlines(self.file)
        if not 0 < self.line <= len(lines):
            return None
        path = Path(self.file)
        name = str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else self.file
        start = sum(map(len, lines[: self.line - 1]))
        text = lines[self.line - 1].rstrip()
        return Span(Source(name, "".join(lines)), start + len(text) - len(text.lstrip()), start + len(text))

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


def module_name(path: str) -> str:
    """A module's path, for people."""
    return f"module `{path}`" if path else "the model"


@cache
def is_own(file: str) -> bool:
    """Whether a file is the user's: neither torch's nor ours, and no generated code."""
    return not file.startswith((TORCH, "<")) and not is_ours(file)


def own_span(place: Place | None) -> Span | None:
    """The span of a place in the user's code; None for any other."""
    return place.span() if place is not None and is_own(place.file) else None


def is_ours(file: str) -> bool:
    """Whether a file is a part of the machinery that loads, captures and runs models."""
    return file.startswith(OURS)


def running(paths: dict[int, str], direct: bool = False) -> Place | None:
    """The innermost line of the user's code that is running; `paths` are the module paths by the modules' ids.

    None if no module of the model is running: then torch.export itself is at work. With `direct`, also if torch's code,
    not the user's, called us.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    if direct and (frame is None or not is_own(frame.f_code.co_filename)):
        return None
    found: tuple[str, int] | None = None
    while frame is not None:
        if found is None and is_own(frame.f_code.co_filename):
            found = frame.f_code.co_filename, frame.f_lineno
        path = paths.get(id(frame.f_locals.get("self"))) if found else None
        if found and path is not None:
            return Place(*found, path)
        frame = frame.f_back
    return None


def calling() -> Place | None:
    """The innermost line of the user's code that is running, of whatever module."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return Place(frame.f_code.co_filename, frame.f_lineno) if frame is not None else None


def of_function(function: Any, path: str = "") -> Place | None:
    """The place where a function is defined; None if it is not written in Python."""
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    return Place(code.co_filename, code.co_firstlineno, path) if code is not None else None


def innermost(frames: Iterable[tuple[str, int]], path: str = "") -> Place | None:
    """The last of some files and lines (outermost first) that is the user's code; if none is, the last of all."""
    every = list(frames)
    own = [f for f in every if is_own(f[0])] or every
    return Place(*own[-1], path) if own else None


def raised(error: BaseException) -> Place | None:
    """The last line of the user's code that was running when an exception was raised."""
    return innermost((f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__))


# -- nodes of an exported graph ----------------------------------------------------------------------------------------


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
