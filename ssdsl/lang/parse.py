"""Parses a text into a Script: the LALR parser over the grammar, fed with the tokens of the layout, and the nodes of
its tree.

A rule of the grammar has the name of its node's class. `RULES` has the exceptions: rules whose children are not just
the node's fields.
"""

import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any, get_args

from lark import Lark, Token, Tree, UnexpectedCharacters, UnexpectedToken

from ssdsl.lang import nodes
from ssdsl.lang.assets import cache_folder, grammar_text
from ssdsl.lang.errors.text import OneBranch, OtherWord, UnexpectedWord, UnknownStatement, UnusedValue
from ssdsl.lang.header import header_of
from ssdsl.lang.nodes import Script
from ssdsl.lang.parser.explain import explain_character, explain_token
from ssdsl.lang.parser.indentation import PREFIX, Indentation, span_of
from ssdsl.record import Record, field_names
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source, Span

ALONG = "along"
# a definition with the lines of its block, and those without a statement behind it
DEFINITION = re.compile(r"^(?:def|let) (\w+)[^\n]*(?:\n(?=[ \t\r\n#])[^\n]*)*", re.MULTILINE)


@lru_cache(maxsize=64)
def parse(source: Source) -> Script:
    """The syntax of a plan, parsed once for each text. Raises PlanError with the first mistake in it."""
    header_of(source)
    return parse_blanked(source, source.text)


@lru_cache(maxsize=64)
def parse_definitions(source: Source, names: frozenset[str]) -> Script:
    """The syntax of a library without the definitions that neither these names nor what they name need.

    Raises PlanError with the first mistake in what is parsed. Parsing all of a library of schedules takes longer than
    executing a plan that uses one.
    """
    blocks = {found[1]: found[0] for found in DEFINITION.finditer(source.text)}
    needed, left = set[str](), set(names & blocks.keys())
    while left:
        needed |= left
        words = {word for name in left for word in re.findall(r"\w+", blocks[name])}
        left = (words & blocks.keys()) - needed
    kept = DEFINITION.sub(lambda m: m[0] if m[1] in needed else re.sub(r"[^\n]", " ", m[0]), source.text)
    return parse_blanked(source, kept)


def parse_blanked(source: Source, text: str) -> Script:
    """The syntax of a text in which parts of the source's are blank. Raises PlanError with the first mistake in it."""
    layout = Indentation(source)
    parser = grammar_parser().parse_interactive()
    try:
        for token in layout.process(grammar_parser().lex(PREFIX + text + "\n")):
            parser.feed_token(token)
        tree = parser.feed_eof()  # type: ignore[no-untyped-call]
    except UnexpectedCharacters as e:
        raise PlanError(explain_character(source, (e.pos_in_stream or 0) - len(PREFIX))) from None
    except UnexpectedToken as e:
        accepted = parser.accepts()  # type: ignore[no-untyped-call]
        raise PlanError(explain_token(layout, e.token, accepted)) from None
    return build(source, tree)


@cache
def grammar_parser() -> Lark:
    """The parser of the grammar. Making its tables takes longer than parsing a plan, so Lark caches them in a file, and
    makes them again if that file is of another grammar or unreadable."""
    text, kept = grammar_text(), None
    with suppress(OSError, RuntimeError):  # where there can be no folder
        folder = cache_folder("grammar")
        folder.mkdir(parents=True, exist_ok=True)
        kept = str(folder / hashlib.sha256(text.encode()).hexdigest()[:16])
    options = {"cache": kept or False, "propagate_positions": True, "maybe_placeholders": True}
    return Lark(text, parser="lalr", lexer="basic", **options)


# -- from the tree to nodes --------------------------------------------------------------------------------------------


NODES = (*get_args(nodes.Statement), *get_args(nodes.Expr), nodes.Binding, nodes.Keyed, nodes.Into, nodes.At)


def build(source: Source, tree: Tree[Token]) -> nodes.Script:
    """The script that a parse tree spells."""
    statements = _Builder(source).all(tree)
    return nodes.Script(statements, span=Span(source, 0, len(source.text)))


class _Builder(Record):
    source: Source

    def __call__(self, item: Any) -> Any:
        """The node of a tree, or the word of a name; of other tokens the text, without quotes. None for an optional
        part that is absent."""
        if item is None:
            return None
        if isinstance(item, Token):
            is_name = item.type == "NAME"
            return nodes.Word(str(item), span=span_of(self.source, item)) if is_name else item.strip('"')
        return RULES[item.data.rstrip("_")](self, item, *item.children)  # rules named by Python's keywords: `if_`

    def all(self, tree: Any) -> tuple[Any, ...]:
        """The nodes of a tree's children, without absent ones."""
        return tuple(self(child) for child in tree.children if child is not None)

    def span(self, tree: Any) -> Span:
        """The place of a tree in the user's text, which Lark read with `PREFIX` before it and a line end after it."""
        start, end = tree.meta.start_pos - len(PREFIX), tree.meta.end_pos - len(PREFIX)
        return Span(self.source, start, min(end, len(self.source.text)))


def _same(node: type[Any]) -> Callable[..., Any]:
    """A rule whose children are the node's fields."""
    return lambda b, tree, *children: node(*map(b, children), span=b.span(tree))


def _gathered(node: type[Any]) -> Callable[..., Any]:
    """A rule whose last children are together the node's last field."""
    first = len(field_names(node)) - 2  # without `span` and the last

    def rule(b: _Builder, tree: Any, *children: Any) -> Any:
        rest = tuple(b(child) for child in children[first:] if child is not None)
        return node(*map(b, children[:first]), rest, span=b.span(tree))

    return rule


def _use(b: _Builder, tree: Any, module: Token, *names: Token) -> nodes.UseStatement:
    is_file = module.type == "STRING"
    found = nodes.Text(b(module), span=span_of(b.source, module)) if is_file else b(module)
    return nodes.UseStatement(found, tuple(map(b, names)), span=b.span(tree))


def _do(b: _Builder, tree: Any, call: Any) -> nodes.Do:
    """A call as a statement. Raises PlanError for any other expression, which would have no effect."""
    node = b(call)
    if not isinstance(node, nodes.Call):
        raise PlanError(UnusedValue(b.span(tree)))
    return nodes.Do(node, span=b.span(tree))


def _mesh(b: _Builder, tree: Any, name: Token, *rest: Any) -> nodes.MeshStatement:
    *axes, on = (b(child) for child in rest)
    return nodes.MeshStatement(b(name), tuple(axis for axis in axes if axis is not None), on, span=b.span(tree))


def _assign(b: _Builder, tree: Any, operators: Any, devices: Any, *copies: Any) -> nodes.AssignStatement:
    return nodes.AssignStatement(b(operators), b(devices), tuple(map(b, copies)), span=b.span(tree))


def _soft(node: type[nodes.Keyworded]) -> Callable[..., Any]:
    """A statement whose keyword is a name elsewhere. Raises PlanError for another word before the operators: a misspelt
    statement."""

    def rule(b: _Builder, tree: Any, word: Token, *children: Any) -> Any:
        if word != node.keyword:
            raise PlanError(_unknown(b, tree, word))
        return node(*map(b, children), span=b.span(tree))

    return rule


def _unknown(b: _Builder, tree: Any, word: Token) -> UnknownStatement | UnexpectedWord:
    """The mistake of a statement that begins with a word of none, or with one that goes on in another way."""
    if word in {statement.keyword for statement in nodes.SOFT_STATEMENTS}:
        words = f"the words of `{word}`", "others", "", (), str(word)
        return UnexpectedWord(b.span(tree), *words, has_slashes=False)
    return UnknownStatement(span_of(b.source, word), str(word))


def _keep(b: _Builder, tree: Any, word: Token, operators: Any, parts: Any, *words: Token) -> nodes.KeepStatement:
    """Raises PlanError for another word than those of `keep OPS through m in backward`."""
    for given, meant in zip(words, ("through", None, "backward"), strict=True):
        if word == nodes.KeepStatement.keyword and given is not None and meant not in (None, given):
            raise PlanError(OtherWord(span_of(b.source, given), str(given), str(meant)))
    through, phase = words[1:]
    return _soft(nodes.KeepStatement)(b, tree, word, operators, parts, through, phase)  # type: ignore[no-any-return]


def _compress(b: _Builder, tree: Any, word: Token, operators: Any, how: Any, along: Token, dim: Any) -> Any:
    """Raises PlanError for another word than those of `compress OPS by HOW along DIM`."""
    if word == nodes.CompressStatement.keyword and along != ALONG:
        raise PlanError(OtherWord(span_of(b.source, along), str(along), ALONG))
    return _soft(nodes.CompressStatement)(b, tree, word, operators, how, dim)


def _suffixed(b: _Builder, tree: Any, statement: Any, where: Any) -> nodes.ForStatement:
    """`STATEMENT for x in xs`, in one line."""
    return nodes.ForStatement(b(where), (b(statement),), True, span=b.span(tree))


def _for(b: _Builder, tree: Any, where: Any, block: Any) -> nodes.ForStatement:
    return nodes.ForStatement(b(where), b(block), False, span=b.span(tree))


def _if(b: _Builder, tree: Any, *parts: Any) -> nodes.IfStatement:
    *pairs, other = parts
    tests = [
        nodes.Branch(b(t), b(body), span=b.span(t).to(b.span(body)))
        for t, body in zip(pairs[::2], pairs[1::2], strict=True)
    ]
    return nodes.IfStatement(tuple(tests), b(other.children[0]) if other else (), span=b.span(tree))


def _either(b: _Builder, tree: Any, word: Token, *blocks: Any) -> nodes.EitherStatement:
    """Raises PlanError for another word before the block, and for one branch alone."""
    if word != nodes.EitherStatement.keyword:
        raise PlanError(_unknown(b, tree, word))
    if len(blocks) < 2:
        raise PlanError(OneBranch(span_of(b.source, word)))
    return nodes.EitherStatement(tuple(map(b, blocks)), span=b.span(tree))


def _clock(b: _Builder, tree: Any, by: Token, where: Any, *rows: Any) -> nodes.ClockStatement:
    """`order by clock`; `rows` are trees (`at TIME: ...`) and the tokens of line ends between them."""
    return nodes.ClockStatement(
        b(by), b(where) or (), tuple(b(r) for r in rows if isinstance(r, Tree)), span=b.span(tree)
    )


def _split(b: _Builder, tree: Any, operators: Any, dim: Any, *rest: Any) -> nodes.SplitStatement:
    *cuts, where = rest
    return nodes.SplitStatement(b(operators), b(dim), tuple(map(b, cuts)), b(where), span=b.span(tree))


def _dim_name(b: _Builder, tree: Any, *parts: Token) -> nodes.Word:
    return nodes.Word(".".join(parts).strip('"'), span=b.span(tree))


def _binary(b: _Builder, tree: Any, left: Any, operator: Token, right: Any) -> nodes.Binary:
    return nodes.Binary(b(operator), b(left), b(right), span=b.span(tree))


def _tuple(b: _Builder, tree: Any, *children: Any) -> tuple[Any, ...]:
    return b.all(tree)


RULES: dict[str, Callable[..., Any]] = {
    **{cls.__name__.removesuffix("Statement").lower(): _same(cls) for cls in NODES},
    "mesh": _mesh,
    "assign": _assign,
    "on": _gathered(nodes.On),
    "split": _split,
    "call": _gathered(nodes.Call),
    "pick": _gathered(nodes.Pick),
    "order": _gathered(nodes.OrderStatement),
    "list": _gathered(nodes.ListOf),
    "use": _use,
    "do": _do,
    "bucket": _soft(nodes.BucketStatement),
    "keep": _keep,
    "precision": _soft(nodes.PrecisionStatement),
    "compress": _compress,
    "kept_parts": _gathered(nodes.KeptParts),
    "suffixed": _suffixed,
    "for": _for,
    "if": _if,
    "either": _either,
    "clock": _clock,
    "block": _tuple,
    "where": _tuple,
    "formals": _tuple,
    "dim_name": _dim_name,
    "binary": _binary,
    "name": lambda b, tree, token: nodes.NameExpression(str(token), span=b.span(tree)),
    "parentheses": lambda b, tree, inner: b(inner),
}
