"""Diagnostics of a plan's syntax."""

import re

from ssdsl.lang.nodes import STATEMENTS
from ssdsl.lang.suggest import either, nearest, suggest
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.edits import TextEdit
from ssdsl.text.source import Span

CHARACTERS = {
    "'": 'strings are written "..."',
    "/": "division of whole numbers is `//`; comments begin with `#`",
    ";": "write one statement a line",
    "{": "lists are written [a, b]",
    "!": "`not x`, and `a != b`",
    "\\": "a statement may span lines inside brackets",
}
MEANT = {
    "/": "//",
    "\u00a0": " ",
    "\u201c": '"',
    "\u201d": '"',
    "\u2192": "->",
    "\u2212": "-",
    "\u2013": "-",
    "\u00d7": "*",
}
FOREIGN = {  # words of other languages with which a line may begin
    "while": "every plan ends: there is `for s in 0..S:`",
    "import": "functions of another file come by `use pipeline: one_f_one_b`",
    "from": "functions of another file come by `use pipeline: one_f_one_b`",
    "set": "a number that the user may set is `param N = 2`",
    "print": "`ssdsl show` prints what a plan means",
}
SEVERAL = {  # statements that take one selection, and how to name several
    "recompute": "several are a list in brackets: `recompute [a, b]`",
    "assign": "several are united: `assign a | b to gpus`",
    "split": "several are united: `split a | b by batch into dp`",
    "prefetch": "several are united: `prefetch a | b by 4`",
}
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
# names that every plan has and that cannot be bound
GIVEN = ("model", "none", "any", "true", "false", "balance", "each", "len", "min", "max")
# names that every plan has; they can be bound, because older plans may bind them
FREE = ("cut", "schedule", "size", "slices", "widths")


def _end_of_code(text: str, start: int) -> int:
    """The end of what stands on a line from a place on, without a comment."""
    own = re.match(r'(?:"[^"\n]*"|[^"#\n])*', text[start:])
    return start + len(own[0].rstrip() if own else "")


class UnknownStatement(Diagnostic):
    """A line begins with a word that is no statement: `splt model by batch into dp`.

    A line is a statement, which begins with its keyword, or a call of a function. `:help` in `ssdsl repl` lists the
    statements.
    """

    code = "E0110"
    title = "there is no statement `{word}`"
    word: str

    @property
    def change(self) -> str:
        found = FOREIGN.get(self.word) or suggest(self.word, STATEMENTS)
        return found or "a statement begins with " + either(STATEMENTS)

    @property
    def instead(self) -> tuple[str, ...]:
        return () if self.word in FOREIGN else nearest(self.word, STATEMENTS)


class OneBranch(Diagnostic):
    """`either:` has a block for each of at least two branches; every one after the first begins with `or:`. A search
    chooses one, and without a search the first is what the plan says."""

    code = "E0127"
    title = "`either:` has one branch"
    help = "add a line `or:` with another block, or leave `either:` out"


class LoneOr(Diagnostic):
    """`or:` begins a further branch of a choice: it stands below the block of `either:`, as far to the right."""

    code = "E0128"
    title = "`or:` stands without `either:`"
    help = "put `either:` and a block in front of it, as far to the right"


class OtherWord(Diagnostic):
    """A statement has certain words between its parts: `keep model.weights through m in backward`."""

    code = "E0126"
    title = "expected `{expected}`, found `{word}`"
    help = "write `{expected}`"
    word: str
    expected: str

    @property
    def instead(self) -> tuple[str, ...]:
        return (self.expected,)


class UnexpectedWord(Diagnostic):
    """The line begins with a statement but does not continue as it must: `split model batch into dp` lacks `by`."""

    code = "E0111"
    title = "expected {expected}, found {found}"
    help = "{comment}\n{quoted}\n{suggestion}\n{form}"
    expected: str
    found: str
    word: str
    keywords: tuple[str, ...]  # those that could stand here
    statement: str  # the first word of the line
    has_slashes: bool  # whether `//` stands in the line, which other languages begin comments with
    unquoted: str = ""  # the name of a dimension that has to be in quotes
    path: str = ""  # the selection by a path in quotes that was meant

    @property
    def comment(self) -> str:
        if self.has_slashes:
            return "comments begin with `#`; `//` divides whole numbers"
        if self.word == "==" and "`=`" in self.expected:
            return "a name is given its value by one `=`; `==` compares"
        if self.word == "," and self.statement in SEVERAL:
            is_dim = self.expected == "`into`"
            return "a statement cuts one dimension: write one for each" if is_dim else SEVERAL[self.statement]
        if self.word in COMPARISONS and self.expected != "a value":
            return "compare two values at a time: `a <= b and b <= c`"
        if self.word in ("&", "|") and self.expected == "a value":
            return "truth values are combined by `and` and `or`"
        return "`else if` is written `elif`" if (self.statement, self.word) == ("else", "if") else ""

    @property
    def quoted(self) -> str:
        if self.path:
            return f"numbers and stars stand in brackets: `{self.path}`"
        return f'a name with such characters is in quotes: `by "{self.unquoted}"`' if self.unquoted else ""

    @property
    def suggestion(self) -> str:
        """The keyword that was probably meant; where no form of the statement is known, what is expected."""
        if self.unquoted or self.path:
            return ""
        if self.word.isidentifier() and (found := suggest(self.word, self.keywords)):
            return found
        if self.form or self.comment:
            return ""
        return f"write {self.expected} in place of {self.found}"

    @property
    def form(self) -> str:
        found = STATEMENTS.get(self.statement)
        return f"the statement reads `{found[0].form}`" if found else ""

    @property
    def instead(self) -> tuple[str, ...]:
        if self.word == "==" and "`=`" in self.expected:
            return ("=",)
        if self.unquoted or self.path or not self.word.isidentifier():
            return ()
        return nearest(self.word, self.keywords)

    def edits(self) -> tuple[TextEdit, ...]:
        """A `:` that is missing at the end of a line, too."""
        if self.span is None or self.expected != "`:`" or self.span.text.strip():
            return super().edits()
        text = self.span.source.text
        start = text.rfind("\n", 0, self.span.start) + 1
        return (TextEdit(Span(self.span.source, *[_end_of_code(text, start)] * 2), ":"),)


class UnknownCharacter(Diagnostic):
    """The language does not use this character: `let x = 6 / 2` (division of whole numbers is `//`)."""

    code = "E0112"
    title = "unexpected character {shown}"
    character: str

    @property
    def shown(self) -> str:
        return f"`{self.character}`" if self.character.isprintable() else f"U+{ord(self.character):04X}"

    @property
    def change(self) -> str:
        meant = f"write `{MEANT[self.character]}`" if MEANT.get(self.character, " ") != " " else "remove it"
        return CHARACTERS.get(self.character, meant)

    @property
    def instead(self) -> tuple[str, ...]:
        return (MEANT[self.character],) if self.character in MEANT else ()


class UnclosedString(Diagnostic):
    """A string ends on the line where it begins: `model["h.*]` lacks the second quotation mark."""

    code = "E0113"
    title = "this string is not closed"
    label = "begins here"
    help = 'close it with `"` on the same line'

    def edits(self) -> tuple[TextEdit, ...]:
        """In front of the bracket that follows, or at the end of the line."""
        assert self.span is not None
        inside = re.match(r"[^\n#)\]]*", self.span.source.text[self.span.start :])
        end = self.span.start + len(inside[0].rstrip() if inside else "")
        return (TextEdit(Span(self.span.source, end, end), '"'),)


class UnclosedBracket(Diagnostic):
    """A bracket is still open where a new statement begins, or the text ends: `mesh gpus(dp = 2`."""

    code = "E0114"
    title = "`{bracket}` is not closed"
    label = "opened here"
    help = "close it with `{closing}`"
    bracket: str
    closing: str

    def edits(self) -> tuple[TextEdit, ...]:
        """At the end of the line in which it opens, in front of the `:` of a block."""
        assert self.span is not None
        text, start = self.span.source.text, self.span.start
        end = start + len(text[start : _end_of_code(text, start)].removesuffix(":").rstrip().rstrip(","))
        return (TextEdit(Span(self.span.source, end, end), self.closing),)


class UnmatchedBracket(Diagnostic):
    """A closing bracket that fits no open one: `mesh gpus(dp = 2]`."""

    code = "E0115"
    title = "`{bracket}` closes nothing"
    bracket: str
    closing: str | None  # what would close the bracket that is open, if one is
    opening: Span | None

    @property
    def change(self) -> str:
        return f"close with `{self.closing}`" if self.closing else "no bracket is open here: remove it"

    @property
    def instead(self) -> tuple[str, ...]:
        return (self.closing or "",)

    def others(self) -> tuple[tuple[Span, str], ...]:
        return ((self.opening, "this is open"),) if self.opening else ()


class TabInIndentation(Diagnostic):
    """Blocks are indented by spaces, because the width of a tab depends on the editor."""

    code = "E0116"
    title = "this line is indented by a tab"
    help = "indent by four spaces"

    @property
    def instead(self) -> tuple[str, ...]:
        return ("    ",)


class UnalignedLine(Diagnostic):
    """A line is indented less than the one before it, but not as much as any open block.

    for s in 0..S:
        assign stage[s] to gpus[pp = s]
      order a -> b        # neither in the loop nor after it
    """

    code = "E0117"
    title = "this line is aligned with no block"
    label = "{columns} spaces"
    help = "the blocks open here are indented by {known} spaces"
    columns: int
    known: str


class UnexpectedIndentation(Diagnostic):
    """A line is indented more than the one before it, but that line does not open a block with `:`."""

    code = "E0118"
    title = "this line is indented, and no block begins here"
    help = "align it with the line above, or end that with `:`"


class MissingBlock(Diagnostic):
    """After the `:` of `for`, `if` and `def` come the lines of the block, indented, on lines of their own."""

    code = "E0119"
    title = "expected an indented block"
    help = "put the block's lines below the `:`, indented by four spaces"


class NestedTooDeeply(Diagnostic):
    """Brackets, operators or blocks are nested deeper than anybody reads: `((((...))))`."""

    code = "E0120"
    title = "this is nested too deeply"
    label = "more than {limit} levels"
    help = "give the inner parts names with `let`, or move them to a function"
    limit: int


class ReservedWord(Diagnostic):
    """A word of the language is used as a name: `let order = 3`."""

    code = "E0121"
    title = "`{word}` is a word of the language and cannot be a name"
    help = "choose another name, such as `{word}_`"
    word: str


class MissingLet(Diagnostic):
    """A name is bound by `let`, once: `x = 3` is written `let x = 3`."""

    code = "E0122"
    title = "a line that gives a name a value begins with `let`"
    help = "{other}write `let {new} = ...`; a number that the user may set is `param {new} = ...`"
    name: str

    @property
    def new(self) -> str:
        return f"{self.name}_" if self.name in GIVEN else self.name

    @property
    def other(self) -> str:
        return f"`{self.name}` is a word that every plan has. Choose another name: " if self.name in GIVEN else ""

    @property
    def instead(self) -> tuple[str, ...]:
        return (f"let {self.new}", f"param {self.new}")


class NumberTooLong(Diagnostic):
    """Numbers in a plan count parts and devices; eighteen digits are more than enough."""

    code = "E0123"
    title = "this number is too long"
    label = "{digits} digits"
    help = "no count in a plan has more than {limit} digits"
    digits: int
    limit: int


class UnusedValue(Diagnostic):
    """A value alone on a line has no effect: `model["h.0"]`. Only calls may stand alone."""

    code = "E0124"
    title = "this value is not used"
    help = "begin the line with a statement: `split`, `assign`, `order`, `recompute`, `let`"
