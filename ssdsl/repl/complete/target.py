"""The value that a completion is about: what stands in front of a dot or a bracket."""

from typing import Any

from ssdsl.lang import nodes
from ssdsl.lang.parse import parse
from ssdsl.plan.eval.expressions import evaluate
from ssdsl.plan.eval.values import Function
from ssdsl.repl.complete.position import Position
from ssdsl.repl.session import Session
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source

OPENS, CLOSES = ("LPAR", "LSQB"), ("RPAR", "RSQB")


def before_end(here: Position) -> str | None:
    """The text of the value in front of the last dot, or of the bracket that is open."""
    types = here.types
    last = len(types) - 1
    end = _opening(types, last) if types[last] == "COMMA" else last
    if end is None or types[end] not in ("DOT", "LSQB"):
        return None
    start = end
    while start > 0:
        if types[start - 1] in CLOSES:
            start = _opening(types, start - 1) or 0
        elif types[start - 1] in ("NAME", "DOT", "STRING"):
            start -= 1
        else:
            break
        if types[start] == "NAME" and (start == 0 or types[start - 1] != "DOT"):
            break
    return here.between(start, end) or None


def _opening(types: tuple[str, ...], end: int) -> int | None:
    """The bracket that is open at a token, or that this closing one closes."""
    depth = 0 if types[end] in CLOSES else 1
    for at in range(end, -1, -1):
        depth += (types[at] in CLOSES) - (types[at] in OPENS)
        if depth == 0:
            return at
    return None


def value_of(session: Session, text: str | None) -> Any:
    """The value of an expression that says nothing; None if it has none here, as in a loop or a function."""
    try:
        match parse(Source("", f"let value = (\n{text}\n)\n")).statements:
            case (nodes.Let(_, None, value),):
                return None if text is None else _evaluated(session, value)
    except PlanError:
        pass
    return None


def _evaluated(session: Session, e: nodes.Expr) -> Any:
    """Functions may add facts, which nobody asked for: they are not called."""
    ctx, scope = session.facts.context, session.facts.scope
    called = {n.text for n in _called(e)}
    if any(isinstance(scope.values.get(name), Function) for name in called):
        return None
    steps = ctx.steps
    try:
        return evaluate(ctx, scope, e)
    finally:
        ctx.steps = steps


def _called(e: nodes.Expr) -> list[nodes.Name]:
    """The names of the functions that an expression calls."""
    match e:
        case nodes.Call(function, arguments):
            own = [function] if isinstance(function, nodes.Name) else []
            inner = [a.value if isinstance(a, nodes.Keyed) else a for a in arguments]
            return [*own, *(n for x in inner for n in _called(x))]
        case nodes.Attribute(target, _):
            return _called(target)
        case nodes.Pick(target, keys):
            inner = [k.value if isinstance(k, nodes.Keyed) else k for k in keys]
            return [*_called(target), *(n for x in inner for n in _called(x))]
        case nodes.Binary(_, left, right):
            return [*_called(left), *_called(right)]
        case nodes.Unary(_, operand):
            return _called(operand)
    return []
