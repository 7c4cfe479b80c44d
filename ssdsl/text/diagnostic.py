"""Diagnostics: a fact about the user's text or model, the place where it shows, and the change to make.

The fields of a subclass of `Diagnostic` are the facts of one mistake. Its class variables are the texts, as
`str.format` templates over the fields, and over properties where a sentence depends on the facts. A field or a property
`change` is the help of a class without a text for it; `instead` and `edits` are what of it a program can do.
`ssdsl explain` prints its docstring. Rendering is in `render.py`.
"""

import inspect
import re
from typing import Any, ClassVar

from ssdsl.record import Record
from ssdsl.text.edits import TextEdit
from ssdsl.text.source import Span

SLOT = re.compile(r"`?\{[^}]*\}`?")
REGISTRY: dict[str, type["Diagnostic"]] = {}


class Diagnostic(Record):
    """One mistake or warning; subclasses set the texts and add fields. One without a `code` is a base for others."""

    code: ClassVar[str]
    severity: ClassVar[str] = "error"
    title: ClassVar[str]
    label: ClassVar[str] = ""
    note: ClassVar[str] = ""
    help: ClassVar[str] = ""

    span: Span | None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "change" in {**vars(cls), **cls.__annotations__} and "help" not in vars(cls):
            cls.help = "{change}"
        if not hasattr(cls, "code"):
            return
        known = REGISTRY.setdefault(cls.code, cls)
        assert known.__qualname__ == cls.__qualname__, f"{cls.code} is taken by {known.__qualname__}"

    def text(self, template: str) -> str:
        """One of the class's templates with fields and properties filled in, without lines that become empty."""
        lines = template.format_map(_Attributes(self)).split("\n")
        return "\n".join(line.rstrip() for line in lines if line.strip()).strip()

    @classmethod
    def headline(cls) -> str:
        """The title for all of the class: `cannot split ... into ... equal parts`; or the docstring's first line, if
        the title has no words of its own."""
        title = SLOT.sub("...", cls.title)
        return title if title.strip(" .:`") else (inspect.getdoc(cls) or "").partition("\n")[0].rstrip(".")

    def others(self) -> tuple[tuple[Span, str], ...]:
        """Further places to show, each with its label."""
        return ()

    @property
    def instead(self) -> tuple[str, ...]:
        """What the help writes in place of the span, the likeliest first."""
        return ()

    def edits(self) -> tuple[TextEdit, ...]:
        """The changes of the text that the help names, any one of which is enough; the likeliest first."""
        return () if self.span is None else tuple(TextEdit(self.span, words) for words in self.instead)


class Misnamed(Diagnostic):
    """A name that does not exist, with a suggestion of another, or ""."""

    label = "{suggestion}"
    suggestion: str


class _Attributes(Record):
    """The attributes of a diagnostic as the mapping that `str.format_map` takes."""

    of: Diagnostic

    def __getitem__(self, name: str) -> Any:
        return getattr(self.of, name)


class PlanError(Exception):
    """The user's plan, model or command is wrong: one or more diagnostics, independent mistakes together."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        super().__init__("; ".join(f"{d.code}: {d.text(d.title)}" for d in diagnostics))
        self.diagnostics = diagnostics


class InternalError(Exception):
    """The compiler is wrong: report it with the plan and the model."""
