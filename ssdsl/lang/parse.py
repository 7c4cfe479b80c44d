"""From text to Script: the LALR parser over the grammar, fed with the tokens of the layout."""

import hashlib
from contextlib import suppress
from functools import cache, lru_cache

from lark import Lark, UnexpectedCharacters, UnexpectedToken

from ssdsl.lang.assets import cache_folder, grammar_text
from ssdsl.lang.nodes import Script
from ssdsl.lang.parser.build import build
from ssdsl.lang.parser.explain import explain_character, explain_token
from ssdsl.lang.parser.layout import PREFIX, Indentation
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source


@lru_cache(maxsize=64)
def parse(source: Source) -> Script:
    """The syntax of a plan, parsed once for each text. Raises PlanError with the first mistake in it."""
    layout = Indentation(source)
    parser = _parser().parse_interactive()
    try:
        for token in layout.process(_parser().lex(PREFIX + source.text + "\n")):
            parser.feed_token(token)
        tree = parser.feed_eof()  # type: ignore[no-untyped-call]
    except UnexpectedCharacters as e:
        raise PlanError(explain_character(source, (e.pos_in_stream or 0) - len(PREFIX))) from None
    except UnexpectedToken as e:
        accepted = parser.accepts()  # type: ignore[no-untyped-call]
        raise PlanError(explain_token(layout, e.token, accepted)) from None
    return build(source, tree)


@cache
def _parser() -> Lark:
    """The parser. Making its tables takes longer than parsing a plan, so Lark caches them in a file, and makes them
    again if that file is of another grammar or unreadable."""
    text, kept = grammar_text(), None
    with suppress(OSError, RuntimeError):  # where there can be no folder
        folder = cache_folder("grammar")
        folder.mkdir(parents=True, exist_ok=True)
        kept = str(folder / hashlib.sha256(text.encode()).hexdigest()[:16])
    options = {"cache": kept or False, "propagate_positions": True, "maybe_placeholders": True}
    return Lark(text, parser="lalr", lexer="basic", **options)
