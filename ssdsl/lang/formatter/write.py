"""The lines of a script's nodes, each with its indentation and the span that it came from."""

import re
from collections.abc import Iterator
from typing import get_args

from ssdsl.lang import nodes
from ssdsl.lang.formatter.spell import spell, spell_dim
from ssdsl.record import Record, field_names
from ssdsl.text.source import Span


class Line(Record):
    """A line without its indentation; `column` is its column in the source, from zero."""

    indent: int
    text: str
    span: Span

    @property
    def column(self) -> int:
        return self.span.source.line_column(self.span.start)[1] - 1


def write(script: nodes.Script) -> Iterator[Line]:
    """All lines of a script."""
    return _block(script.statements, 0)


def _block(statements: tuple[nodes.Statement, ...], indent: int) -> Iterator[Line]:
    for statement in statements:
        yield from _statement(statement, indent)


def _statement(s: nodes.Statement, indent: int) -> Iterator[Line]:
    match s:
        case nodes.ForStatement(bindings, body, False):
            yield Line(indent, f"for {_where(bindings)}:", _head(s.span, body))
            yield from _block(body, indent + 1)
        case nodes.IfStatement(branches, other):
            yield from _if(s, branches, other, indent)
        case nodes.EitherStatement(branches):
            yield from _either(s, branches, indent)
        case nodes.DefStatement(name, formals, body):
            yield Line(indent, f"def {name.text}({_words(formals)}):", _head(s.span, body))
            yield from _block(body, indent + 1)
        case nodes.ClockStatement(by, bindings, rows):
            loop = f" for {_where(bindings)}" if bindings else ""
            yield Line(indent, f"order by {by.text}{loop}:", _head(s.span, rows))
            for row in rows:
                yield Line(indent + 1, f"{spell(row.tasks)} at {spell(row.time)}", row.span)
        case _:
            yield Line(indent, _simple(s), s.span)


def _if(
    s: nodes.IfStatement, branches: tuple[nodes.Branch, ...], other: tuple[nodes.Statement, ...], indent: int
) -> Iterator[Line]:
    for i, branch in enumerate(branches):
        start = s.span if i == 0 else branch.span
        yield Line(indent, f"{'elif' if i else 'if'} {spell(branch.test)}:", _head(start, branch.body))
        yield from _block(branch.body, indent + 1)
    if other:
        yield Line(indent, "else:", _between(branches[-1].body[-1].span, other, "else"))
        yield from _block(other, indent + 1)


def _either(s: nodes.EitherStatement, branches: tuple[tuple[nodes.Statement, ...], ...], indent: int) -> Iterator[Line]:
    for number, body in enumerate(branches):
        head = _head(s.span, body) if not number else _between(branches[number - 1][-1].span, body, "or")
        yield Line(indent, f"{'or' if number else s.keyword}:", head)
        yield from _block(body, indent + 1)


def _head(span: Span, body: tuple[nodes.Node, ...]) -> Span:
    """The span of the line that opens a block: up to its `:`, without the comments after it."""
    text = re.sub(r"#[^\n]*", lambda m: " " * len(m[0]), span.source.text[span.start : body[0].span.start])
    return Span(span.source, span.start, span.start + len(text.rstrip()))


def _between(last: Span, body: tuple[nodes.Statement, ...], word: str) -> Span:
    """The span of `else:` or `or:`, which is no node: it lies between the end of the block before it and its own."""
    text = last.source.text[last.end : body[0].span.start]
    plain = re.sub(r"#[^\n]*", lambda m: " " * len(m[0]), text)
    start = last.end + max(plain.find(word), 0)
    return Span(last.source, start, last.end + len(plain.rstrip()))


def _simple(s: nodes.Statement) -> str:
    """The text of a statement of one line: by the `spelling` of its class, unless parts of it are optional or
    quoted."""
    match s:
        case nodes.ParamStatement(name, default, domain, help_):
            tried = "" if domain is None else f" in {spell(domain)}"
            return f"param {name.text} = {spell(default)}{tried}" + ("" if help_ is None else f' "{help_}"')
        case nodes.LetStatement(name, formals, value):
            given = "" if formals is None else f"({_words(formals)})"
            return f"let {name.text}{given} = {spell(value)}"
        case nodes.UseStatement(module, names):
            of = f'"{module.value}"' if isinstance(module, nodes.Text) else module.text
            return f"use {of}: {_words(names)}"
        case nodes.RequireStatement(test, why):
            return f"require {spell(test)}" + ("" if why is None else f', "{why}"')
        case nodes.SplitStatement(operators, dim, cuts, where):
            suffix = f" where {where.text}" if where else ""
            return f"split {spell(operators)} by {spell_dim(dim.text)} into {', '.join(map(_cut, cuts))}{suffix}"
        case nodes.MeshStatement(name, axes, on):
            behind = "" if on is None else f" {on.word.text} {', '.join(map(spell, on.devices))}"
            return f"mesh {name.text}({', '.join(map(_spelled, axes))}){behind}"
        case nodes.AssignStatement(operators, devices, copies):
            return f"assign {spell(operators)} to {', '.join(map(spell, (devices, *copies)))}"
        case nodes.KeepStatement(operators, parts, through, phase):
            cut = "" if parts is None else f" by {parts.dim.text} into {_words(parts.axes)}"
            return f"keep {spell(operators)}{cut} through {through.text}" + (
                "" if phase is None else f" in {phase.text}"
            )
        case nodes.CompressStatement(operators, how, dim):
            return f"compress {spell(operators)} by {spell(how)} along {spell_dim(dim.text)}"
        case nodes.OrderStatement(steps):
            return "order " + " -> ".join(map(spell, steps))
        case nodes.ForStatement(bindings, body, True):
            return f"{_simple(body[0])} for {_where(bindings)}"
        case nodes.Do(call):
            return spell(call)
    return s.spelling.format_map({name: _spelled(getattr(s, name)) for name in field_names(s) if name != "span"})


def _spelled(field: object) -> str:
    """A field of a statement: a word, an expression or several of them."""
    match field:
        case nodes.Word(text):
            return text
        case nodes.Keyed(name, value):
            return f"{name.text} = {spell(value)}"
        case tuple():
            return ", ".join(map(_spelled, field))
    assert isinstance(field, get_args(nodes.Expr)), field
    return spell(field)


def _cut(cut: nodes.Into) -> str:
    words = [cut.name.text, *([] if cut.count is None else ["=", spell(cut.count)])]
    if cut.phrase is not None and cut.chunks is not None:
        words += [cut.phrase.text, spell(cut.chunks)]
    return " ".join(words)


def _where(bindings: tuple[nodes.Binding, ...]) -> str:
    """The loops of a `for`: `s in 0..S, m in 0..M`."""
    return ", ".join(f"{b.name.text} in {spell(b.values)}" for b in bindings)


def _words(words: tuple[nodes.Word, ...]) -> str:
    return ", ".join(w.text for w in words)
