"""The words that may come next in an entry: words of the grammar, and names where it accepts one."""

import re
from collections.abc import Iterable, Iterator

from ssdsl.assist.complete.position import Position, position
from ssdsl.assist.complete.supply import (
    CONSTANTS,
    Offer,
    before_end,
    behind_dot,
    devices,
    dimensions,
    in_brackets,
    in_scope,
    indices,
    next_segments,
    to_use,
)
from ssdsl.assist.reading import DraftReading
from ssdsl.lang.nodes import SOFT_STATEMENTS, STATEMENTS
from ssdsl.lang.parser.indentation import KEYWORDS
from ssdsl.plan.values import Devices, Selection

WORD = re.compile(r"[A-Za-z_0-9]*$")
OPEN_STRING = re.compile(r'(?:[^"#]|"[^"]*")*"(?P<inside>[^"]*)$')
COMMENT = re.compile(r'(?:[^"#]|"[^"]*")*#')
SOFT = tuple(statement.keyword for statement in SOFT_STATEMENTS)
WORDS = (*STATEMENTS, *sorted(KEYWORDS - set(STATEMENTS)))
SELECT = ("SPLIT", "ASSIGN", "ORDER", "RECOMPUTE", "ARROW", "AT")  # tokens in front of a selection
INTRODUCE = ("PARAM", "LET", "DEF", "MESH", "DIM", "FOR")  # tokens in front of a new name
OPERATORS = ("and", "or", "not", "else")
INFREQUENT = (*OPERATORS, "for", "if")  # offered once their first letter is typed


def offers(known: DraftReading, before: str, text: str) -> list[Offer]:
    """The words with which the end of this text may go on, the likeliest first; `before` is the text of the plan in
    front of it."""
    line = text.rpartition("\n")[2]
    if found := OPEN_STRING.match(line):
        inside = found["inside"]
        return fitting(_in_string(known, line[: found.start("inside")], inside), inside.rpartition(".")[2])
    if COMMENT.match(line):
        return []
    word = WORD.search(text)
    typed = word[0] if word else ""
    here = position(before + text.removesuffix(typed))
    return [] if here is None or typed[:1].isdigit() else fitting(_next(known, here, typed), typed)


def fitting(found: Iterable[Offer], typed: str) -> list[Offer]:
    """The offers that begin with what is typed, each once."""
    same = {o.text: Offer(o.text, o.about, len(typed)) for o in reversed(list(found)) if o.text.startswith(typed)}
    return list(same.values())[::-1]


def _in_string(known: DraftReading, before: str, inside: str) -> Iterator[Offer]:
    """The segments of a module path in brackets, or files after `use`."""
    if before.lstrip().startswith("use"):
        yield from (Offer(path.name) for path in sorted(known.folder.glob("*.ssp")))
    elif before.rstrip('" ').endswith(("[", "(")):
        ctx = known.context
        for segment in next_segments(ctx.model.paths, inside):
            yield Offer(segment)


def _next(known: DraftReading, here: Position, typed: str) -> Iterator[Offer]:
    """The names and the words that the grammar accepts here; at the start of a line the words come first."""
    types = here.types
    hidden = () if typed else INFREQUENT if types else OPERATORS
    line = here.line
    if line and line[0].type == "NAME" and len(line) > 1 and line[1].type == "NAME" and line[0] not in SOFT:
        return  # a misspelt statement
    accepted = [w for w in WORDS if (w.upper() in here.accepted or (w in SOFT and not types)) and w not in hidden]
    words = [Offer(word, "" if types else STATEMENTS[word][0].form if word in STATEMENTS else "") for word in accepted]
    names = list(_names(known, here)) if "NAME" in here.accepted else []
    names = [o for o in names if typed or o.text not in CONSTANTS or types[-1:] == ("EQUAL",)]
    yield from (*names, *words) if types else (*words, *names)


def _names(known: DraftReading, here: Position) -> Iterator[Offer]:
    """The names that fit the tokens in front of them."""
    types = here.types
    last = types[-1] if types else ""
    if _is_new(types):
        return
    if types[:1] == ("USE",):
        yield from to_use(known, here)
    elif last == "DOT":
        yield from behind_dot(known, here)
    elif last == "BY":
        yield from dimensions(known, here)
    elif _in_cuts(types):
        yield from indices(known)
    elif last == "TO":
        yield from devices(known)
    elif last == "WHERE":
        yield Offer("possible", "leave operators as they are that cannot be cut so")
    else:
        inner = known.value_of(before_end(here)) if last in ("LSQB", "COMMA") else None
        if isinstance(inner, Selection | Devices):
            yield from in_brackets(known, inner)
        else:
            yield from in_scope(known, selects=last in SELECT)


def _is_new(types: tuple[str, ...]) -> bool:
    """Whether a name here would be introduced by the statement."""
    if not types or types[-1] in INTRODUCE:
        return bool(types)
    if types[0] in ("DEF", "MESH"):
        return types[-1] in ("LPAR", "COMMA")
    return types[0] == "LET" and "EQUAL" not in types


def _in_cuts(types: tuple[str, ...]) -> bool:
    """Whether the text ends after `into`, or after a comma of its list that is in no bracket."""
    if "INTO" not in types or types[-1] not in ("INTO", "COMMA"):
        return False
    since = types[types.index("INTO") :]
    return sum(t in ("LPAR", "LSQB") for t in since) == sum(t in ("RPAR", "RSQB") for t in since)
