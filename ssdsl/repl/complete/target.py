"""The value that a completion is about: the expression in front of a dot or a bracket."""

from ssdsl.plan.eval.values import Value
from ssdsl.repl.complete.position import Position
from ssdsl.repl.session import Session, expression, look
from ssdsl.text.diagnostic import PlanError

OPENS, CLOSES = ("LPAR", "LSQB"), ("RPAR", "RSQB")


def before_end(here: Position) -> str | None:
    """The text of the expression in front of the last dot, or of the open bracket."""
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
    """The position of the bracket that is open at a token, or that this closing bracket closes."""
    depth = 0 if types[end] in CLOSES else 1
    for at in range(end, -1, -1):
        depth += (types[at] in CLOSES) - (types[at] in OPENS)
        if depth == 0:
            return at
    return None


def value_of(session: Session, text: str | None) -> Value:
    """The value of an expression; None if it has no value here, as inside a loop or a function."""
    if text is None:
        return None
    try:
        value = expression(text)
        return look(session, value) if value is not None else None
    except PlanError:
        return None
