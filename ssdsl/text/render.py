"""Renders diagnostics as text (the title, the place with its line, notes, the change to make), and as JSON."""

from typing import Any

from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Span

WIDTH = 120


def render(diagnostic: Diagnostic) -> str:
    """The whole diagnostic as plain text, without a trailing line end."""
    d = diagnostic
    parts = [f"{d.severity}[{d.code}]: {d.text(d.title)}"]
    if d.span is not None:
        parts.append(_place(d.span, d.text(d.label)))
    parts += [_place(span, label) for span, label in d.others()]
    if note := d.text(d.note):
        margin = " " * _margin(d)
        parts += [f"{margin}= note: " + note.replace("\n", f"\n{margin}        ")]
    if help_ := d.text(d.help):
        parts.append("help: " + help_.replace("\n", "\n      "))
    return "\n".join(parts)


def _margin(d: Diagnostic) -> int:
    return 1 if d.span is None else len(str(d.span.source.line_column(d.span.start)[0])) + 1


def _place(span: Span, label: str) -> str:
    line, column = span.source.line_column(span.start)
    text = span.source.line(line)
    gutter = " " * len(str(line))
    length = max(1, min(span.end - span.start, len(text) - column + 1))
    shift = max(0, column + length - WIDTH) if column > WIDTH // 2 else 0
    shown = text[shift : shift + WIDTH].replace("\t", " ")
    length = max(1, min(length, len(shown) - (column - 1 - shift)))
    marks = " " * (column - 1 - shift) + "^" * length
    return "\n".join(
        [
            f"{gutter}--> {span}",
            f"{gutter} |",
            f"{line} | {shown}".rstrip(),
            f"{gutter} | {marks}{'  ' + label if label else ''}",
            f"{gutter} |",
        ]
    )


def as_json(diagnostic: Diagnostic) -> dict[str, Any]:
    """The diagnostic as plain values, with null if it has no place in a text; docs/json.md lists the keys."""
    d = diagnostic
    spans = [(d.span, d.text(d.label))] if d.span is not None else []
    places = [_json_place(span, label) for span, label in (*spans, *d.others())]
    first = places[0] if spans else dict.fromkeys(("file", "line", "column", "end", "label"))
    others = places[1:] if spans else places
    notes, help_ = d.text(d.note), d.text(d.help)
    return {
        "code": d.code,
        "severity": d.severity,
        "message": d.text(d.title),
        **first,
        "others": others,
        "notes": notes.split("\n") if notes else [],
        "help": help_.split("\n") if help_ else [],
        "edits": [{**_json_span(edit.span), "text": edit.text} for edit in d.edits()],
    }


def _json_place(span: Span, label: str) -> dict[str, Any]:
    return {**_json_span(span), "label": label}


def _json_span(span: Span) -> dict[str, Any]:
    line, column = span.source.line_column(span.start)
    last, end = span.source.line_column(span.end)
    return {
        "file": span.source.name,
        "line": line,
        "column": column,
        "end": {"line": last, "column": end},
    }
