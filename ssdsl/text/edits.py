"""Changes of a text that a diagnostic names, as data: for `ssdsl check --fix`, JSON and editors."""

from collections.abc import Iterable

from ssdsl.record import Record
from ssdsl.text.source import Source, Span


class TextEdit(Record):
    """A piece of a text, and what to write in its place; nothing, to leave it out."""

    span: Span
    text: str

    @classmethod
    def line(cls, span: Span, text: str) -> "TextEdit":
        """In place of the line in which a span begins, as far to the right as it."""
        start, end = _line(span)
        own = span.source.text[start:end]
        return cls(Span(span.source, start + len(own) - len(own.lstrip()), end), text)

    @classmethod
    def above(cls, span: Span, text: str) -> "TextEdit":
        """A line above the one in which a span begins."""
        start, _ = _line(span)
        return cls(Span(span.source, start, start), f"{text}\n")

    @classmethod
    def at_end(cls, source: Source, text: str) -> "TextEdit":
        """A line at the end of a text."""
        end = len(source.text.rstrip())
        return cls(Span(source, end, end), f"\n{text}")

    def __str__(self) -> str:
        first, last = self.span.line, self.span.line + self.span.text.count("\n")
        if not self.text:
            return f"leave out line {first}" if first == last else f"leave out lines {first} to {last}"
        return f"in line {first} write `{self.text}`, not `{self.span.text}`"


def edited(source: Source, edits: Iterable[TextEdit]) -> str:
    """The text with all of these changes; of two that overlap the first one is made. A line of which nothing is left
    goes as a whole."""
    text, made = source.text, list[TextEdit]()
    for edit in edits:
        if edit.span.source.name == source.name and not any(_meet(edit.span, one.span) for one in made):
            made.append(edit)
    for edit in sorted(made, key=lambda edit: edit.span.start, reverse=True):
        start, end = edit.span.start, edit.span.end
        if not edit.text and start < end:
            first, behind = text.rfind("\n", 0, start) + 1, text.find("\n", end)
            rest = text[end:] if behind < 0 else text[end:behind]
            if not text[first:start].strip() and not rest.partition("#")[0].strip():
                start, end = first, len(text) if behind < 0 else behind + 1
        text = text[:start] + edit.text + text[end:]
    return text


def _line(span: Span) -> tuple[int, int]:
    start = span.source.text.rfind("\n", 0, span.start) + 1
    end = span.source.text.find("\n", span.start)
    return start, len(span.source.text) if end < 0 else end


def _meet(a: Span, b: Span) -> bool:
    return a.start == b.start or (a.start < b.end and b.start < a.end)
