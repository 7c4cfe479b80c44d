"""Why a text does not parse, in the user's words: from the parser's complaint to a diagnostic."""

from lark import Token

from ssdsl.lang.errors import (
    MissingBlock,
    MissingLet,
    ReservedWord,
    UnclosedString,
    UnexpectedIndentation,
    UnexpectedWord,
    UnknownCharacter,
    UnknownStatement,
)
from ssdsl.lang.layout import KEYWORDS, STATEMENTS, Layout, span_of
from ssdsl.lang.suggest import joined, suggest
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Source, Span

WORDS = {
    "NAME": "a name",
    "NUMBER": "a number",
    "STRING": "a string",
    "EQUAL": "`=`",
    "COLON": "`:`",
    "COMMA": "`,`",
    "DOT": "`.`",
    "ARROW": "`->`",
    "LPAR": "`(`",
    "RPAR": "`)`",
    "LSQB": "`[`",
    "RSQB": "`]`",
    "_NL": "the end of the line",
    "_INDENT": "an indented block",
}
EXPRESSION = {"NAME", "NUMBER", "STRING", "LPAR", "LSQB", "MINUS", "NOT"}
GOES_ON = {"PLUS", "MINUS", "TIMES", "RANGE", "COMPARE", "AND", "OR", "IF", "DOT", "LPAR", "LSQB"}
FORMS = {
    "param": 'param N = 2 "help"',
    "mesh": "mesh gpus(dp = 2, tp = 2)",
    "let": "let name = value",
    "use": "use pipeline: one_f_one_b",
    "dim": "dim name = operators.name",
    "split": "split model by batch into dp, m = 4",
    "assign": "assign model to gpus",
    "order": "order a -> b",
    "recompute": "recompute operators",
    "require": 'require M >= S, "why"',
    "def": "def name(a, b):",
    "return": "return value",
    "for": "for s in 0..S:",
    "if": "if D > 1:",
}
CHARACTERS = {
    "'": 'strings are written "..."',
    "/": "division of whole numbers is `//`",
    ";": "write one statement a line",
    "{": "lists are written [a, b]",
    "!": "`not x`, and `a != b`",
    "\\": "a line goes on inside brackets",
}
FOREIGN = {
    "while": "every plan ends: there is `for s in 0..S:`",
    "import": "functions of another file come by `use pipeline: one_f_one_b`",
    "from": "functions of another file come by `use pipeline: one_f_one_b`",
    "set": "a number that the user may set is `param N = 2`",
    "print": "`ssdsl show` prints what a plan means",
}


def explain_character(source: Source, at: int) -> Diagnostic:
    """A character at which no token begins."""
    character = source.text[at]
    if character == '"':
        end = source.text.find("\n", at)
        return UnclosedString(Span(source, at, end if end >= 0 else len(source.text)))
    shown = f"`{character}`" if character.isprintable() else f"U+{ord(character):04X}"
    return UnknownCharacter(Span(source, at, at + 1), shown, CHARACTERS.get(character, "remove it"))


def explain_token(layout: Layout, token: Token, accepted: set[str]) -> Diagnostic:
    """A token which the grammar does not accept where it stands."""
    place = span_of(layout.source, token)
    if token.type == "_INDENT":
        return UnexpectedIndentation(place)
    if accepted == {"_INDENT"} or (accepted == {"_NL"} and _last(layout, token).type == "COLON"):
        return MissingBlock(place)
    line = _line(layout, token)
    first = line[0] if line else token
    if (found := _first_word(layout, first, token)) is not None:
        return found
    if token.value in KEYWORDS and "NAME" in accepted and not accepted & {"IF", "FOR"}:
        return ReservedWord(place, token.value)
    expected = _expected(accepted)
    return UnexpectedWord(place, expected, _found(token), _suggestion(token, accepted), _form(first))


def _last(layout: Layout, token: Token) -> Token:
    before = [t for t in layout.tokens[-2:] if t is not token]
    return before[-1] if before else token


def _line(layout: Layout, token: Token) -> list[Token]:
    """The tokens of the logical line in which this one stands, from its start up to and with this one."""
    line: list[Token] = []
    for t in reversed(layout.tokens):
        if t.type in ("_NL", "_INDENT", "_DEDENT") and t is not token:
            break
        line.append(t)
    return line[::-1]


def _first_word(layout: Layout, first: Token, token: Token) -> Diagnostic | None:
    """A line that begins with a name and is no call was meant as a statement, unless it binds a name."""
    if first.type != "NAME" or first is token:
        return None
    if token.type == "EQUAL" and token is layout.tokens[layout.tokens.index(first) + 1]:
        return MissingLet(span_of(layout.source, first), str(first))
    suggestion = FOREIGN.get(str(first)) or suggest(str(first), STATEMENTS)
    if not suggestion and token.type not in EXPRESSION | {k.upper() for k in KEYWORDS}:
        return None
    return UnknownStatement(span_of(layout.source, first), str(first), suggestion or _all_statements())


def _all_statements() -> str:
    return "a statement begins with " + joined([f"`{s}`" for s in STATEMENTS], "or")


def _expected(accepted: set[str]) -> str:
    """The accepted tokens in words: what must come rather than what may go on."""
    words = {k.upper() for k in KEYWORDS} & accepted
    if accepted >= EXPRESSION - {"MINUS", "NOT"}:
        return "a value"
    rest = accepted - GOES_ON - {"IF", "FOR", "AND", "OR", "NOT"}
    if "_NL" in rest and len(rest) > 1:
        rest -= {"_NL"} if words - {"IF", "FOR", "AND", "OR"} else {"COMMA"}
    named = [WORDS.get(t, f"`{t.lower()}`") for t in sorted(rest or accepted)]
    return joined(named, "or") or "nothing more"


def _found(token: Token) -> str:
    if token.type in ("_NL", "$END"):
        return "the end of the line"
    return "the end of the block" if token.type == "_DEDENT" else f"`{str(token)[:60]}`"


def _suggestion(token: Token, accepted: set[str]) -> str:
    keywords = [t.lower() for t in sorted(accepted) if t.lower() in KEYWORDS]
    return suggest(str(token), keywords) if token.type == "NAME" else ""


def _form(first: Token) -> str:
    return f"the statement reads `{FORMS[str(first)]}`" if str(first) in FORMS else ""
