"""The answer of a session: lines, tables and diagnostics, in the order in which they are shown."""

from dataclasses import dataclass
from typing import TypeAlias

from rich.console import RenderableType

from ssdsl.show.view import View
from ssdsl.text.diagnostic import Diagnostic

Shown: TypeAlias = Diagnostic | View | RenderableType


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; `failed` if the entry had a mistake, `ends` if the session is over."""

    shown: tuple[Shown, ...] = ()
    failed: bool = False
    ends: bool = False
