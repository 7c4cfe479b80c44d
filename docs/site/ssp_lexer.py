"""Colours of plans for Pygments. The words are the language's own: those of its grammar, statements and functions."""

from typing import ClassVar

from pygments.lexer import RegexLexer, bygroups, words
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text

from ssdsl.lang.errors.text import FREE, GIVEN
from ssdsl.lang.nodes import SOFT_STATEMENTS
from ssdsl.lang.parser.indentation import KEYWORDS

LOGIC = {"and", "or", "not"}
CONSTANTS = {"none", "any", "true", "false"}
SOFT = sorted(statement.keyword for statement in SOFT_STATEMENTS)
FUNCTIONS = sorted({*GIVEN, *FREE} - CONSTANTS - {"model"})


class SspLexer(RegexLexer):
    """Tokens of a plan, as its own lexer finds them: `grammar/ssp.lark`."""

    name = "ssdsl plan"
    aliases: ClassVar[list[str]] = ["ssp"]
    filenames: ClassVar[list[str]] = ["*.ssp"]
    tokens: ClassVar = {
        "root": [
            (r"#[^\n]*", Comment.Single),
            (r'"[^"\n]*"', String),
            (r"\s+", Text.Whitespace),
            (r"(def)([ \t]+)([A-Za-z_]\w*)", bygroups(Keyword, Text.Whitespace, Name.Function)),
            (rf"^([ \t]*)({'|'.join(SOFT)})(?=[ \t]+[A-Za-z_]|[ \t]*:)", bygroups(Text.Whitespace, Keyword)),
            (r"(?<!\.)(\.)([A-Za-z_]\w*)", bygroups(Punctuation, Name.Attribute)),
            (words(sorted(LOGIC), r"\b", r"\b"), Operator.Word),
            (words(sorted(KEYWORDS), r"\b", r"\b"), Keyword),
            (words(sorted(CONSTANTS), r"\b", r"\b"), Keyword.Constant),
            (r"\bmodel\b", Name.Builtin.Pseudo),
            (words(FUNCTIONS, r"\b", r"(?=[ \t]*\()"), Name.Builtin),
            (r"[A-Za-z_]\w*(?=[ \t]*\()", Name.Function),
            (r"[A-Za-z_]\w*", Name),
            (r"[0-9]+(\.[0-9]+)?", Number),
            (r"->|\.\.|==|!=|<=|>=|//|[-+*%|&<>=]", Operator),
            (r"[()\[\]{},:.]", Punctuation),
            (r".", Text),  # a page may leave out lines by `...`
        ]
    }
