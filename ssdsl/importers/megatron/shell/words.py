"""The words of a shell script: how bash cuts a text into words, what it puts in the place of `$X`, and where each
character was written."""

import re
from collections.abc import Iterator

from ssdsl.record import Record

# A value of a variable, or a word: pieces of text with their lines.
Pieces = tuple[tuple[str, int], ...]

OPERATORS = (";;&", "<<<", "&>>", ";;", ";&", "&&", "||", "<<-", "<<", "&>", ">>", ">&", "<&", ">|", "<>", "|&")
SINGLE = ";&|<>()\n"
NAME = re.compile(r"[A-Za-z_]\w*")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^]]*\])?(\+?=)(.*)\Z", re.DOTALL)
CLOSING = {"(": ")", "{": "}"}


class Token(Record):
    """A word as it is written, or an operator; `body` is the text of a here-document."""

    text: str
    line: int
    is_word: bool
    body: str = ""
    body_line: int = 0


def text_of(pieces: Pieces) -> str:
    return "".join(text for text, _ in pieces)


def line_of(pieces: Pieces) -> int:
    return pieces[0][1] if pieces else 0


def pieces_of(text: str, line: int) -> Pieces:
    """A text that begins on this line, a piece for each of its lines."""
    return tuple((part, line + n) for n, part in enumerate(text.splitlines(keepends=True))) or (("", line),)


def joined(values: list[Pieces]) -> Pieces:
    """Values with blanks between them."""
    found: list[tuple[str, int]] = []
    for n, value in enumerate(values):
        found += [(" ", line_of(value))] if n else []
        found += value
    return tuple(found)


def words_of(pieces: Pieces) -> list[Pieces]:
    """What a value is cut into where no quotes are around it."""
    found: list[Pieces] = []
    now: list[tuple[str, int]] = []
    for text, line in pieces:
        for part in re.findall(r"\s+|\S+", text):
            if not part.isspace():
                now.append((part, line))
            elif now:
                found.append(tuple(now))
                now = []
    return [*found, tuple(now)] if now else found


def tokens(text: str, line: int = 1) -> list[Token]:
    """The words and operators of a script, without its comments.

    >>> [token.text for token in tokens('a "b c" $(d e) # note')]
    ['a', '"b c"', '$(d e)']
    """
    return [*_Tokens(text, line).all()]


class _Tokens:
    """A text, and how far it is read."""

    def __init__(self, text: str, line: int) -> None:
        self.text, self.at, self.line = text, 0, line
        self.waiting: list[tuple[int, str, bool]] = []  # here-documents whose bodies begin after this line
        self.found: list[Token] = []

    def all(self) -> list[Token]:
        while self.at < len(self.text):
            here = self.text[self.at]
            if here == "\n":
                self._operator("\n")
                self._bodies()
            elif here in " \t\r":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at, self.line = self.at + 2, self.line + 1
            elif self.text.startswith("\\\r\n", self.at):
                self.at, self.line = self.at + 3, self.line + 1
            elif here == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self.text.startswith("((", self.at) and (end := _closed(self.text, self.at)) > 0:
                self._word(end)
            elif operator := next((o for o in OPERATORS if self.text.startswith(o, self.at)), here in SINGLE and here):
                self._operator(operator)
            else:
                self._word(_end_of_word(self.text, self.at))
        return self.found

    def _operator(self, operator: str) -> None:
        self.found.append(Token(operator, self.line, False))
        self.at += len(operator)
        self.line += operator.count("\n")

    def _word(self, end: int) -> None:
        word = self.text[self.at : end]
        before = self.found[-1] if self.found else None
        if before is not None and before.text in ("<<", "<<-") and not before.is_word:
            self.waiting.append((len(self.found) - 1, word, before.text == "<<-"))
        self.found.append(Token(word, self.line, True))
        self.line += word.count("\n")
        self.at = max(end, self.at + 1)

    def _bodies(self) -> None:
        for index, word, is_indented in self.waiting:
            mark = re.sub(r"[\"'\\]", "", word)
            lines, start = [], self.line
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                own = self.text[self.at : end]
                self.at, self.line = end + 1, self.line + 1
                if (own.strip("\t") if is_indented else own).rstrip("\r") == mark:
                    break
                lines.append(own.lstrip("\t") if is_indented else own)
            operator = self.found[index]
            self.found[index] = Token(operator.text, operator.line, False, "\n".join(lines) + "\n", start)
        self.waiting = []


def _end_of_word(text: str, at: int) -> int:
    """Where the word ends that begins here; an array's brackets belong to its word."""
    is_array = re.compile(r"[A-Za-z_]\w*(\[[^]]*\])?\+?=\(").match(text, at)
    if is_array:
        return _closed(text, is_array.end() - 1)
    while at < len(text):
        here = text[at]
        if here in " \t\n\r" or here in ";&|<>()":
            return at
        at = skip(text, at)
    return at


def skip(text: str, at: int) -> int:
    """The place behind the character, the quoted text or the expansion that begins here."""
    here = text[at]
    if here == "\\":
        return min(at + 2, len(text))
    if here == "'":
        end = text.find("'", at + 1)
        return len(text) if end < 0 else end + 1
    if here == '"':
        at += 1
        while at < len(text) and text[at] != '"':
            at = skip(text, at) if text[at] in "\\$`" else at + 1
        return min(at + 1, len(text))
    if here == "`":
        end = text.find("`", at + 1)
        return len(text) if end < 0 else end + 1
    if here == "$" and text[at + 1 : at + 2] in ("(", "{"):
        return _closed(text, at + 1)
    return at + 1


def _closed(text: str, at: int) -> int:
    """The place behind the bracket that closes the one here."""
    opening, closing = text[at], CLOSING[text[at]]
    depth = 0
    while at < len(text):
        here = text[at]
        if here == opening:
            depth += 1
        elif here == closing:
            depth -= 1
            if not depth:
                return at + 1
        elif here == "#" and opening == "(" and text[at - 1].isspace():
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
            continue
        if here in "\\'\"`" or (here == "$" and text[at + 1 : at + 2] in ("(", "{")):
            at = skip(text, at)
        else:
            at += 1
    return len(text)


def array_words(text: str, line: int) -> Iterator[Token]:
    """Yields the words between the brackets of `X=( ... )`."""
    yield from (token for token in tokens(text, line) if token.is_word)
