"""What can be wrong with the text of a plan before its meaning is asked: E01xx."""

from dataclasses import dataclass

from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Span


@dataclass(frozen=True)
class NoSuchFile(Diagnostic):
    """The plan that the command names does not exist: `ssdsl check megatorn.ssp`.

    A plan is a file, or the name of one in the standard library (`ssdsl plans` lists those).
    """

    code = "E0101"
    title = "there is no plan `{name}`"
    help = "{suggestion}\n`ssdsl plans` lists the plans that come with ssdsl"
    name: str
    suggestion: str


@dataclass(frozen=True)
class FileUnreadable(Diagnostic):
    """The plan's file exists but cannot be read: `ssdsl check examples/` names a folder."""

    code = "E0102"
    title = "cannot read `{name}`: {reason}"
    help = "name a text file that you may read"
    name: str
    reason: str


@dataclass(frozen=True)
class FileNotUtf8(Diagnostic):
    """A plan is UTF-8 text. Editors that save in another encoding, or a binary file, lead here."""

    code = "E0103"
    title = "`{name}` is not UTF-8 text"
    label = "the byte {byte} is no UTF-8"
    help = "save the file as UTF-8"
    name: str
    byte: str


@dataclass(frozen=True)
class FileTooLarge(Diagnostic):
    """A plan is a short text; a file beyond the limit is most likely not a plan."""

    code = "E0104"
    title = "`{name}` is larger than {limit_kib} KiB"
    help = "is it a plan? loops and functions keep plans short"
    name: str
    limit_kib: int


@dataclass(frozen=True)
class UnknownStatement(Diagnostic):
    """A line begins with a word that is no statement: `splt model by batch into dp`.

    Statements are `param mesh let use dim split assign order recompute require def return for if`, and calls of
    functions.
    """

    code = "E0110"
    title = "there is no statement `{word}`"
    help = "{suggestion}"
    word: str
    suggestion: str


@dataclass(frozen=True)
class UnexpectedWord(Diagnostic):
    """The line begins well and goes on otherwise than its statement does: `split model batch into dp` lacks `by`."""

    code = "E0111"
    title = "expected {expected}, found {found}"
    help = "{suggestion}\n{form}"
    expected: str
    found: str
    suggestion: str
    form: str


@dataclass(frozen=True)
class UnknownCharacter(Diagnostic):
    """A character that the language does not use: `let x = 6 / 2` (division of whole numbers is `//`)."""

    code = "E0112"
    title = "unexpected character {character}"
    help = "{hint}"
    character: str
    hint: str


@dataclass(frozen=True)
class UnclosedString(Diagnostic):
    """A string ends on the line on which it begins: `model["h.*]` lacks the second quotation mark."""

    code = "E0113"
    title = "this string is not closed"
    label = "begins here"
    help = 'close it with `"` on the same line'


@dataclass(frozen=True)
class UnclosedBracket(Diagnostic):
    """A bracket is open when a new statement begins, or the text ends: `mesh gpus(dp = 2`."""

    code = "E0114"
    title = "`{bracket}` is not closed"
    label = "opened here"
    help = "close it with `{closing}`"
    bracket: str
    closing: str


@dataclass(frozen=True)
class UnmatchedBracket(Diagnostic):
    """A closing bracket that fits no open one: `mesh gpus(dp = 2]`."""

    code = "E0115"
    title = "`{bracket}` closes nothing"
    help = "{hint}"
    bracket: str
    hint: str
    opening: Span | None

    def others(self) -> tuple[tuple[Span, str], ...]:
        return ((self.opening, "this is open"),) if self.opening else ()


@dataclass(frozen=True)
class TabInIndentation(Diagnostic):
    """Blocks are indented by spaces; how wide a tab is depends on the editor."""

    code = "E0116"
    title = "this line is indented by a tab"
    help = "indent by four spaces"


@dataclass(frozen=True)
class UnalignedLine(Diagnostic):
    """A line is indented less than the one before it, but as no line that is still open.

    for s in 0..S:
        assign stage[s] to gpus[pp = s]
      order a -> b        # neither in the loop nor behind it
    """

    code = "E0117"
    title = "this line is aligned with no block"
    label = "{columns} spaces"
    help = "the blocks open here are indented by {known} spaces"
    columns: int
    known: str


@dataclass(frozen=True)
class UnexpectedIndentation(Diagnostic):
    """A line is indented more than the one before it, and that does not open a block with `:`."""

    code = "E0118"
    title = "this line is indented, and no block begins here"
    help = "align it with the line above, or end that with `:`"


@dataclass(frozen=True)
class MissingBlock(Diagnostic):
    """Behind the `:` of `for`, `if` and `def` come the lines of the block, indented, on lines of their own."""

    code = "E0119"
    title = "expected an indented block"
    help = "put the block's lines below the `:`, indented by four spaces"


@dataclass(frozen=True)
class NestedTooDeeply(Diagnostic):
    """Brackets, operators or blocks are nested deeper than anybody reads: `((((...))))`."""

    code = "E0120"
    title = "this is nested too deeply"
    label = "more than {limit} levels"
    help = "give the inner parts names with `let`, or move them to a function"
    limit: int


@dataclass(frozen=True)
class ReservedWord(Diagnostic):
    """A word of the language stands where a name should: `let order = 3`."""

    code = "E0121"
    title = "`{word}` is a word of the language and cannot be a name"
    help = "choose another name, such as `{word}_`"
    word: str


@dataclass(frozen=True)
class MissingLet(Diagnostic):
    """A name is bound by `let`, once: `x = 3` is written `let x = 3`."""

    code = "E0122"
    title = "a name is bound by `let`"
    help = "write `let {name} = ...`; a number that the user may set is `param {name} = ...`"
    name: str


@dataclass(frozen=True)
class NumberTooLong(Diagnostic):
    """Numbers in a plan count parts and devices; eighteen digits are more than enough."""

    code = "E0123"
    title = "this number is too long"
    label = "{digits} digits"
    help = "no count in a plan has more than {limit} digits"
    digits: int
    limit: int


@dataclass(frozen=True)
class NothingSaid(Diagnostic):
    """A value alone on a line says nothing about the plan: `model["h.0"]`. Only calls stand alone."""

    code = "E0124"
    title = "this value is not used"
    help = "begin the line with a statement: `split`, `assign`, `order`, `recompute`, `let`"


@dataclass(frozen=True)
class FileUnwritable(Diagnostic):
    """A file that a command was told to write cannot be written: its folder does not exist, or is not yours."""

    code = "E0125"
    title = "`{file}` cannot be written: {reason}"
    help = "give a file in a folder that exists and that you may write to"
    file: str
    reason: str
