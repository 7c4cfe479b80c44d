"""Finds places in the user's own code: the file and line, and the module that was running."""

import linecache
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from ssdsl.text.source import Source, Span

TORCH = str(Path(torch.__file__).parent)
PACKAGE = Path(__file__).parent.parent.parent
OURS = tuple(str(PACKAGE / part) for part in ("model", "runtime", "run"))
NETS = str(PACKAGE / "model" / "zoo" / "nets")  # the zoo's own modules are models as a user's are


@dataclass(frozen=True, slots=True)
class Place:
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


def is_own(file: str) -> bool:
    """Whether a file is the user's: neither torch's nor ours, and no generated code."""
    return not file.startswith((TORCH, "<")) and not is_ours(file)


def is_ours(file: str) -> bool:
    """Whether a file is a part of the machinery that loads, captures and runs models."""
    return file.startswith(OURS) and not file.startswith(NETS)


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


def of_function(function: Any, path: str = "") -> Place | None:
    """The place where a function is defined; None if it is not written in Python."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return Place(code.co_filename, code.co_firstlineno, path) if code is not None else None


def innermost(frames: Iterable[tuple[str, int]], path: str = "") -> Place | None:
    """The last of some files and lines (outermost first) that is the user's code; if none is, the last of all."""
    every = list(frames)
    own = [f for f in every if is_own(f[0])] or every
    return Place(*own[-1], path) if own else None


def raised(error: BaseException) -> Place | None:
    """The last line of the user's code that was running when an exception was raised."""
    return innermost((f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__))
