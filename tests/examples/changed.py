"""A plan's statements, changed one at a time: left out, along another dimension, into another index, elsewhere."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ssdsl.lang import nodes
from ssdsl.lang.parse import parse
from ssdsl.text.source import Source, Span

STATES = ("weights", "grads", "optimizer")
DIMS = ("batch", "seq", "heads", "ffn", "hidden")  # of most models; one that an operator lacks is refused
NOTHING = "require true"  # in the place of a statement: a block needs one


@dataclass(frozen=True)
class Changed:
    """The text of a plan in which the statement at `span` of the original is another one."""

    span: Span
    old: str
    new: str
    text: str

    @property
    def what(self) -> str:
        """The statement as it was, and as it is now."""
        return f"{_line(self.old)} -> {_line(self.new)}"

    def had(self, span: Span) -> bool:
        """Whether a span of the plan as it was lies in the statement."""
        return span.source.name == self.span.source.name and self.span.start <= span.start < self.span.end

    def has(self, span: Span | None) -> bool:
        """Whether a span of the changed plan lies in the statement."""
        if span is None or span.source.name != self.span.source.name:
            return False
        return self.span.start <= span.start < self.span.start + len(self.new)


def changed_plans(source: Source) -> Iterator[Changed]:
    """All changes of all statements that say something of operators, their state, or their tasks."""
    script = parse(source)
    axes = {
        a.name.text: _text(a.value) for s in script.statements if isinstance(s, nodes.MeshStatement) for a in s.axes
    }
    for statement in _all(script.statements):
        old = _text(statement)
        for at, new in _changes(statement, axes):
            inside = old[: at.start - statement.span.start] + new + old[at.end - statement.span.start :]
            text = source.text[: at.start] + new + source.text[at.end :]
            yield Changed(statement.span, old, inside, text)


def _all(statements: tuple[nodes.Statement, ...]) -> Iterator[nodes.Statement]:
    for s in statements:
        match s:
            case nodes.ForStatement(_, body) | nodes.DefStatement(_, _, body):
                yield from _all(body)
            case nodes.IfStatement(branches, other):
                yield from _all((*(x for b in branches for x in b.body), *other))
            case _:
                yield s


def _changes(s: nodes.Statement, axes: dict[str, str]) -> Iterator[tuple[Span, str]]:
    """Each change as a place and what stands there instead."""
    match s:
        case nodes.SplitStatement(nodes.Attribute(_, nodes.Word(state))) if state in STATES:
            yield s.span, NOTHING
            yield from _other_state(s, state, [*axes])
        case nodes.SplitStatement():
            yield s.span, NOTHING
            yield from _other_parts(s, axes)
        case nodes.AssignStatement(_, devices):
            yield s.span, NOTHING
            yield from _other_devices(devices, axes)
        case nodes.OrderStatement(steps):
            yield s.span, NOTHING
            yield _from_to(steps), " -> ".join(map(_text, reversed(steps)))
        case nodes.ClockStatement(rows=rows):
            for row in rows:
                yield row.time.span, f"-({_text(row.time)})"
                if len(rows) > 1:
                    yield row.span, ""
        case nodes.RecomputeStatement() | nodes.Do():
            yield s.span, NOTHING
        case nodes.PrefetchStatement(_, ahead) | nodes.BucketStatement(_, ahead):
            yield s.span, NOTHING
            yield ahead.span, "0"
        case _:
            return


def _other_parts(s: nodes.SplitStatement, axes: dict[str, str]) -> Iterator[tuple[Span, str]]:
    for dim in [d for d in DIMS if d != s.dim.text][:3]:
        yield s.dim.span, dim
    for cut in s.cuts:
        if cut.count is None and cut.chunks is None:
            yield cut.span, f"other = {axes.get(cut.name.text, 2)}"
        else:
            yield cut.name.span, "other"
        if len(s.cuts) > 1:
            yield _from_to(s.cuts), ", ".join(_text(c) for c in s.cuts if c is not cut)


def _other_state(s: nodes.SplitStatement, state: str, axes: list[str]) -> Iterator[tuple[Span, str]]:
    assert isinstance(s.operators, nodes.Attribute)
    for other in (name for name in STATES if name != state):
        yield s.operators.name.span, other
    said = [c.name.text for c in s.cuts]
    for others in (*([a] for a in axes), axes):
        if set(others) != set(said):
            yield _from_to(s.cuts), ", ".join(others)


def _other_devices(devices: nodes.Expr, axes: dict[str, str]) -> Iterator[tuple[Span, str]]:
    if isinstance(devices, nodes.Pick):
        yield devices.span, _text(devices.target)
        for key in devices.keys:
            if isinstance(key, nodes.Keyed):
                yield key.value.span, f"{axes[key.name.text]} - 1 - ({_text(key.value)})"
            else:  # an item of a list of meshes
                yield key.span, f"len({_text(devices.target)}) - 1 - ({_text(key)})"
    else:
        yield devices.span, f"{_text(devices)}[{next(iter(axes))} = 0]"


def _from_to(those: tuple[nodes.Node, ...] | tuple[nodes.Into, ...]) -> Span:
    return those[0].span.to(those[-1].span)


def _text(node: nodes.Node) -> str:
    return node.span.source.text[node.span.start : node.span.end]


def _line(text: str) -> str:
    return re.sub(r"\s+", " ", text)
