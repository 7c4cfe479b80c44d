"""The statements of a shell script, as a tree. What is not understood is a command whose words nobody knows."""

from ssdsl.importers.megatron.shell.words import Token
from ssdsl.record import Record

ENDS = ("then", "elif", "else", "fi", "do", "done", "esac", "}", ";;", ";&", ";;&", ")")
REDIRECTS = {"<", ">", ">>", "<<", "<<-", "<<<", "&>", "&>>", ">&", "<&", ">|", "<>"}


class ShellCommand(Record):
    """Words, and where its output goes and its input comes from: operator and word, or the body of a here-document."""

    words: tuple[Token, ...]
    redirects: tuple[tuple[Token, Token], ...]
    line: int


class Piped(Record):
    """Commands with pipes between them; `is_not` is a `!` before them."""

    commands: "tuple[Statement, ...]"
    is_not: bool


class Listed(Record):
    """Statements with `&&` and `||` between them."""

    first: Piped
    rest: tuple[tuple[str, Piped], ...]


class If(Record):
    """Conditions with what they lead to; the last one is () for `else`."""

    branches: "tuple[tuple[Block, Block], ...]"
    line: int


class ShellLoop(Record):
    """`for NAME in WORDS`, or with NAME "" a `while`, an `until`, a `for ((...))`, whose condition is `head`."""

    name: str
    words: tuple[Token, ...]
    head: "Block"
    body: "Block"
    line: int


class Case(Record):
    word: Token
    arms: "tuple[tuple[tuple[Token, ...], Block], ...]"
    line: int


class ShellFunction(Record):
    name: str
    body: "Block"


class ShellGroup(Record):
    """Statements in brackets; variables of `( ... )` are its own."""

    body: "Block"
    is_own: bool


Statement = ShellCommand | Piped | Listed | If | ShellLoop | Case | ShellFunction | ShellGroup
Block = tuple[Statement, ...]


def parse(words: list[Token]) -> Block:
    """The statements of a script."""
    reader, found = _Reader(words), list[Statement]()
    while reader.at < len(words):
        found += reader.block()
        reader.at += 1  # an end without a beginning
    return tuple(found)


class _Reader:
    def __init__(self, words: list[Token]) -> None:
        self.words, self.at = words, 0

    def peek(self, ahead: int = 0) -> str:
        return self.words[self.at + ahead].text if self.at + ahead < len(self.words) else ""

    def line(self) -> int:
        return self.words[min(self.at, len(self.words) - 1)].line

    def take(self, *texts: str) -> bool:
        if self.at < len(self.words) and self.peek() in texts:
            self.at += 1
            return True
        return False

    def blank(self) -> None:
        while self.take("\n", ";", "&"):
            pass

    def block(self, *ends: str) -> Block:
        found: list[Statement] = []
        self.blank()
        while self.at < len(self.words) and self.peek() not in (ends or ENDS):
            before = self.at
            found.append(self.listed())
            self.blank()
            if self.at == before:
                self.at += 1
        return tuple(found)

    def listed(self) -> Statement:
        first, rest = self.piped(), []
        while self.peek() in ("&&", "||"):
            operator = self.peek()
            self.at += 1
            while self.take("\n"):
                pass
            rest.append((operator, self.piped()))
        only = first.commands[0] if len(first.commands) == 1 and not first.is_not else first
        return Listed(first, tuple(rest)) if rest else only

    def piped(self) -> Piped:
        is_not = self.take("!")
        found = [self.command()]
        while self.take("|", "|&"):
            while self.take("\n"):
                pass
            found.append(self.command())
        return Piped(tuple(found), is_not)

    def command(self) -> Statement:
        line, word = self.line(), self.peek()
        if word == "if":
            return self.conditional(line)
        if word in ("for", "select"):
            return self.counted(line)
        if word in ("while", "until"):
            self.at += 1
            head = self.block("do")
            return ShellLoop("", (), head, self.loop_body(), line)
        if word == "case":
            return self.case(line)
        if word in ("{", "("):
            self.at += 1
            body = self.block("}" if word == "{" else ")")
            self.at += 1
            self.simple_rest([])
            return ShellGroup(body, word == "(")
        if word == "function" or (self.peek(1) == "(" and self.peek(2) == ")"):
            return self.function()
        return self.simple(line)

    def conditional(self, line: int) -> If:
        branches: list[tuple[Block, Block]] = []
        self.at += 1
        while True:
            condition = self.block("then")
            self.take("then")
            branches.append((condition, self.block("elif", "else", "fi")))
            if self.take("elif"):
                continue
            if self.take("else"):
                branches.append(((), self.block("fi")))
            self.take("fi")
            return If(tuple(branches), line)

    def counted(self, line: int) -> ShellLoop:
        self.at += 1
        name, words = self.peek(), []
        self.at += 1
        if name.startswith("(("):
            return ShellLoop("", (), (), self.loop_body(), line)
        while self.take("\n"):
            pass
        if self.take("in"):
            while self.at < len(self.words) and self.words[self.at].is_word:
                words.append(self.words[self.at])
                self.at += 1
        return ShellLoop(name, tuple(words), (), self.loop_body(), line)

    def loop_body(self) -> Block:
        self.blank()
        self.take("do")
        body = self.block("done")
        self.take("done")
        self.simple_rest([])
        return body

    def case(self, line: int) -> Case:
        self.at += 1
        word = self.words[min(self.at, len(self.words) - 1)]
        self.at += 1
        self.blank()
        self.take("in")
        arms = []
        self.blank()
        while self.at < len(self.words) and self.peek() != "esac":
            patterns = []
            self.take("(")
            while self.at < len(self.words) and self.peek() != ")":
                if self.words[self.at].is_word:
                    patterns.append(self.words[self.at])
                self.at += 1
            self.at += 1
            arms.append((tuple(patterns), self.block(";;", ";&", ";;&", "esac")))
            self.take(";;", ";&", ";;&")
            self.blank()
        self.take("esac")
        return Case(word, tuple(arms), line)

    def function(self) -> ShellFunction:
        self.take("function")
        name = self.peek()
        self.at += 1
        while self.take("(", ")", "\n"):
            pass
        body = self.command()
        return ShellFunction(name, body.body if isinstance(body, ShellGroup) else (body,))

    def simple(self, line: int) -> ShellCommand:
        words: list[Token] = []
        redirects = self.simple_rest(words)
        return ShellCommand(tuple(words), redirects, line)

    def simple_rest(self, words: list[Token]) -> tuple[tuple[Token, Token], ...]:
        """Reads words and redirections up to the next operator."""
        redirects = []
        while self.at < len(self.words):
            token = self.words[self.at]
            if token.is_word:
                words.append(token)
            elif token.text in REDIRECTS:
                if words and words[-1].text.isdigit() and len(words) > 1:
                    words.pop()  # `2>`
                self.at += 1
                target = self.words[min(self.at, len(self.words) - 1)]
                redirects.append((token, target))
            else:
                break
            self.at += 1
        return tuple(redirects)
