"""The commands that a shell script would run, without running any: variables, conditions and files are followed as bash
does. What the script asks its environment is taken as unset, and said."""

import re
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from ssdsl.importers.megatron.shell.conditions import Answer, Tests
from ssdsl.importers.megatron.shell.parse import (
    Block,
    Case,
    If,
    Listed,
    Piped,
    ShellCommand,
    ShellFunction,
    ShellGroup,
    ShellLoop,
    Statement,
    parse,
)
from ssdsl.importers.megatron.shell.values import DEEPEST, LARGEST
from ssdsl.importers.megatron.shell.words import (
    ASSIGNMENT,
    Pieces,
    Token,
    array_words,
    joined,
    line_of,
    pieces_of,
    text_of,
    tokens,
    words_of,
)
from ssdsl.record import Record, replace

MOST = 20_000  # statements, for functions that call themselves
RUNS_TEXT = {"bash", "sh", "zsh", "/bin/bash", "/bin/sh"}
NO_LAUNCH = set("echo printf cat grep sed tee mkdir rm cp mv cd set pip pip3 git".split())


class ShellWord(Record):
    """A word of a command, and the line on which it is written; `file` is another than the script's, or ""."""

    text: str
    line: int
    file: str = ""


class Assumed(Record):
    """Something that the script leaves open, and what was taken instead."""

    written: str
    because: str
    line: int
    file: str = ""


class FollowedScript(Record):
    """What a script would do: commands with `export` and the like left out, files that it writes, what was assumed, and
    the values that its variables have at its end."""

    commands: tuple[tuple[ShellWord, ...], ...]
    files: dict[str, str]
    assumed: tuple[Assumed, ...]
    variables: dict[str, tuple[ShellWord, ...]]
    options: tuple[ShellWord, ...]  # of `#SBATCH`


def run(text: str, path: Path | None) -> FollowedScript:
    """Follow a script; files that it reads are looked for beside it."""
    shell = _Shell(path)
    shell.block(parse(tokens(text)))
    named = {
        name: tuple(ShellWord(text_of(word), line_of(word)) for value in values.values() for word in words_of(value))
        for name, values in shell.variables.items()
    }
    return FollowedScript(
        tuple(shell.commands), shell.files, tuple(shell.assumed), named, (*_options(text), *shell.options)
    )


def _options(text: str) -> tuple[ShellWord, ...]:
    """The words of `#SBATCH` comments."""
    found = []
    for n, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"\s*#SBATCH\s+(.*)", line):
            found += [ShellWord(word, n) for word in match[1].partition(" #")[0].split()]
    return tuple(found)


class _Stop(Exception):
    """The script or a function ends here."""


class _Turn(Exception):
    """The turn of a loop ends here."""


class _Shell(Tests):
    """The state of a script while it is followed."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(path)
        self.file, self.steps = "", 0
        self.functions: dict[str, Block] = {}
        self.commands: list[tuple[ShellWord, ...]] = []
        self.assumed: list[Assumed] = []
        self.options: list[ShellWord] = []

    # -- statements ----------------------------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        with suppress(_Stop, _Turn):
            self.inner(block)

    def statement(self, statement: Statement) -> None:
        self.steps += 1
        if self.steps > MOST:
            raise _Stop
        match statement:
            case ShellCommand():
                self.command(statement)
            case Piped(commands=commands):
                self.piped(commands)
            case Listed():
                self.listed(statement)
            case If():
                self.conditional(statement)
            case ShellLoop():
                self.loop(statement)
            case Case():
                self.case(statement)
            case ShellFunction(name=name, body=body):
                self.functions[name] = body
            case ShellGroup(body=body):
                self.inner(body)

    def inner(self, block: Block) -> None:
        """Statements within others, in which `exit` ends all."""
        for statement in block:
            self.statement(statement)

    def listed(self, listed: Listed) -> None:
        is_true, reason = self.status(listed.first)
        for operator, piped in listed.rest:
            if is_true == (operator == "&&"):
                if reason and operator == "||" and _exits((piped,)):
                    continue
                is_true, reason = self.status(piped)

    def status(self, statement: Statement) -> Answer:
        """Whether a command succeeds, which it does if nothing else is known, and why that is not known."""
        if isinstance(statement, Piped) and len(statement.commands) == 1:
            is_true, reason = self.status(statement.commands[0])
            return is_true != statement.is_not, reason
        if isinstance(statement, ShellGroup):
            return self.status(statement.body[-1]) if statement.body else (True, "")
        if isinstance(statement, Listed):
            return self.all_of(statement)
        if isinstance(statement, ShellCommand) and statement.words:
            word = statement.words[0].text
            if word in ("[", "[[", "test") or word.startswith("(("):
                return self.tested(statement)
            if word in ("true", ":", "false"):
                return word != "false", ""
        self.statement(statement)
        return True, ""

    def all_of(self, listed: Listed) -> Answer:
        """Whether conditions with `&&` and `||` between them hold."""
        is_true, reason = self.decided(listed.first)
        for operator, piped in listed.rest:
            if is_true == (operator == "&&"):
                is_true, further = self.decided(piped)
                reason = reason or further
        return is_true, reason

    def decided(self, statement: Statement) -> Answer:
        """The status of a condition; a command that is no test is taken to fail."""
        if isinstance(statement, Piped) and len(statement.commands) == 1:
            is_true, reason = self.decided(statement.commands[0])
            return is_true != statement.is_not, reason
        if isinstance(statement, Listed):
            return self.all_of(statement)
        if isinstance(statement, ShellCommand) and statement.words:
            word = statement.words[0].text
            if word in ("[", "[[", "test", "true", ":", "false") or word.startswith("(("):
                return self.status(statement)
            return False, f"`{word}` is not run"
        if isinstance(statement, ShellGroup) and statement.body:
            return self.decided(statement.body[-1])
        return False, "no command is run"

    def conditional(self, statement: If) -> None:
        open_at: list[str] = []
        written = ""
        for n, (condition, body) in enumerate(statement.branches):
            is_true, reason = self.decided(condition[-1]) if condition else (True, "")
            if reason:
                written = written or f"if {_words(condition[-1])}"
                open_at.append(reason)
                following = len(statement.branches) > n + 1
                if is_true and _exits(body):  # a script that goes on is meant
                    is_true = False
                elif not is_true and following and _exits(statement.branches[n + 1][1]):
                    is_true = not statement.branches[n + 1][0]
            if is_true:
                if open_at:
                    self.assume(written, f"{open_at[0]}: {self.taken(n, condition)}", statement.line)
                self.inner(body)
                return
        if open_at:
            self.assume(written, f"{open_at[0]}: left out", statement.line)

    def taken(self, n: int, condition: Block) -> str:
        if not condition:
            return "`else` is taken"
        return "taken" if n == 0 else f"`elif {_words(condition[-1])}` is taken"

    def assume(self, written: str, because: str, line: int) -> None:
        found = Assumed(written, because, line, self.file)
        if found not in self.assumed:
            self.assumed.append(found)

    def loop(self, loop: ShellLoop) -> None:
        if loop.name:
            values = [value for word in loop.words for value in self.expand(word.text, word.line)]
            if not values:
                return
            if len(values) > 1:
                self.assume(
                    f"for {loop.name} in {' '.join(text_of(value) for value in values)}",
                    f"the first turn, {loop.name} = {text_of(values[0])}",
                    loop.line,
                )
            self.variables[loop.name] = {"0": values[0]}
        elif loop.head and self.decided(loop.head[-1]) != (True, ""):
            return
        with suppress(_Turn):
            self.inner(loop.body)

    def case(self, case: Case) -> None:
        value = text_of(joined(self.expand(f'"{case.word.text}"', case.line)))
        value = text_of(joined(self.expand(case.word.text, case.line))) if '"' in case.word.text else value
        is_open = "$" in value
        for patterns, body in case.arms:
            for pattern in patterns:
                own = text_of(joined(self.expand(pattern.text, pattern.line)))
                if fnmatchcase(value, own) and not (is_open and own != "*"):
                    if is_open:
                        if _exits(body):
                            continue
                        self.assume(f"case {case.word.text}", f"{self.unknown(value)}: `*` is taken", case.line)
                    self.inner(body)
                    return

    def piped(self, commands: tuple[Statement, ...]) -> None:
        """The last command of a pipe may write a file of what the first ones print."""
        printed = self.printed(commands)
        last = commands[-1]
        target = self.target(last) if isinstance(last, ShellCommand) else ""
        if printed is not None and target:
            self.files[target] = printed
            return
        for command in commands:
            self.statement(command)

    # -- commands ------------------------------------------------------------------------------------------------------

    def command(self, command: ShellCommand) -> None:
        words = list(command.words)
        separators = ""
        while words and (match := ASSIGNMENT.match(words[0].text)):
            if match[1] == "IFS":
                separators = text_of(joined(self.expand(match[4], words[0].line, False)))
            else:
                self.assign(match, words[0].line)
            words.pop(0)
        if not words:
            self.writes(command)
            return
        if words[0].text in ("export", "local", "declare", "readonly", "typeset", "let"):
            for word in words[1:]:
                if match := ASSIGNMENT.match(word.text):
                    self.assign(match, word.line)
            return
        if words[0].text.startswith("(("):
            self.counted(words[0])
            return
        fields = [field for word in words for field in self.expand(word.text, word.line)]
        if not fields:
            return
        name = text_of(fields[0])
        if name in self.functions:
            self.call(name, fields[1:])
        elif name in ("exit", "return"):
            raise _Stop
        elif name in ("break", "continue"):
            raise _Turn
        elif name in ("source", "."):
            self.source(fields[1:])
        elif name == "eval":
            self.again(joined(fields[1:]))
        elif name == "set" and len(fields) > 1 and text_of(fields[1]) == "--":
            self.arguments = fields[2:]
        elif name == "shift":
            self.arguments = self.arguments[1:] if self.arguments is not None else None
        elif name == "read":
            self.read(command, fields, separators)
        elif name in (*RUNS_TEXT, "sbatch") and (body := next((o for o, _ in command.redirects if o.body), None)):
            text = joined(self.quoted(body.body, body.body_line))
            self.options += _options(text_of(text))
            self.again(text)
        elif not self.starts(fields):
            self.writes(command)
            self.other(fields)

    def starts(self, fields: list[Pieces]) -> bool:
        """Follows another script, or a text that a shell is given; whether this was one."""
        for n, field in enumerate(fields):
            if text_of(field) in RUNS_TEXT or (n == 0 and text_of(field) == "sbatch"):
                rest = fields[n + 1 :]
                for k, option in enumerate(rest):
                    if re.fullmatch(r"-[a-z]*c", text_of(option)) and k + 1 < len(rest):
                        before = len(self.commands)
                        self.again(rest[k + 1])
                        for at in range(before, len(self.commands)):
                            self.commands[at] = (*self.word_list(fields[:n]), *self.commands[at])
                        return True
                first = next((k for k, own in enumerate(rest) if self.beside(text_of(own)) is not None), None)
                if first is not None:
                    self.options += self.word_list(rest[:first])
                    self.source(rest[first:])
                    return True
        return False

    def other(self, fields: list[Pieces]) -> None:
        if text_of(fields[0]) not in NO_LAUNCH:
            self.commands.append(self.word_list(fields))

    def word_list(self, fields: list[Pieces]) -> tuple[ShellWord, ...]:
        return tuple(ShellWord(text_of(field), line_of(field), self.file) for field in fields)

    def assign(self, match: re.Match[str], line: int) -> None:
        name, index, operator, text = match.groups()
        if text.startswith("("):
            inner = list(array_words(text[1:-1], line))
            values: dict[str, Pieces] = {}
            if operator == "+=":
                values.update(self.variables.get(name, {}))
            for token in inner:
                pair = re.match(r"\[([^]]*)\]=(.*)\Z", token.text, re.DOTALL)
                if pair:
                    key = text_of(joined(self.expand(pair[1], token.line)))
                    values[key] = joined(self.expand(pair[2], token.line, False))
                    continue
                for value in self.expand(token.text, token.line):
                    values[str(len(values))] = value
            self.variables[name] = values
            return
        value = joined(self.expand(text, line, False))
        key = text_of(joined(self.expand(index[1:-1], line))) if index else "0"
        own = self.variables.setdefault(name, {})
        if not index and operator == "=":
            own.clear()
        before = own.get(key, ())
        if len(before) < LARGEST:
            own[key] = before + value if operator == "+=" else value

    def counted(self, word: Token) -> None:
        """`((X = A * B))`, `((X += 1))`."""
        if match := re.match(r"\(\(\s*([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)\s*(.*)\)\)\Z", word.text, re.DOTALL):
            name, sign, rest = match.groups()
            self.variables[name] = {"0": self.arithmetic(f"{name} {sign} ({rest})" if sign else rest, word.line)}

    def call(self, name: str, arguments: list[Pieces]) -> None:
        if self.depth >= DEEPEST:
            return
        before, self.arguments = self.arguments, arguments
        self.depth += 1
        try:
            self.inner(self.functions[name])
        except _Stop:
            pass
        finally:
            self.depth -= 1
            self.arguments = before

    def again(self, pieces: Pieces) -> None:
        """Follow a text that was made: `eval`, `sh -c`. Lines of words are those in which its parts were written."""
        if self.depth >= DEEPEST:
            return
        self.depth += 1
        before = len(self.commands)
        try:
            self.inner(parse(tokens(text_of(pieces), line_of(pieces))))
        finally:
            self.depth -= 1
            self.commands[before:] = _placed(self.commands[before:], pieces)

    def source(self, fields: list[Pieces]) -> None:
        if not fields:
            return
        name = text_of(fields[0])
        path, line = self.beside(name), line_of(fields[0])
        if path is None or self.depth >= DEEPEST:
            self.assume(f"source {name}", "there is no such file beside the script", line)
            return
        text = path.read_text("utf-8", "replace")
        self.options += [replace(word, file=path.name) for word in _options(text)]
        before = self.file, self.arguments
        self.file = path.name
        self.arguments = fields[1:] or self.arguments
        self.depth += 1
        try:
            self.inner(parse(tokens(text)))
        except _Stop:
            pass
        finally:
            self.depth -= 1
            self.file, self.arguments = before

    def read(self, command: ShellCommand, fields: list[Pieces], separators: str) -> None:
        """`read -r -d '' X <<EOF`, `IFS=, read -r A B <<< "$X"`."""
        body = next((operator for operator, _ in command.redirects if operator.body), None)
        here = next((word for operator, word in command.redirects if operator.text == "<<<"), None)
        if here is not None:
            names = [text_of(field) for field in fields[1:] if not text_of(field).startswith("-")]
            text = text_of(joined(self.expand(here.text, here.line)))
            parts = text.split(separators, len(names) - 1) if separators else text.split(None, len(names) - 1)
            self.variables |= {
                name: {"0": ((part.strip(), here.line),)} for name, part in zip(names, parts, strict=False)
            }
        if body is not None:
            self.variables[text_of(fields[-1])] = {"0": pieces_of(body.body.strip(), body.body_line)}

    def writes(self, command: ShellCommand) -> None:
        """A file that a command writes, if what it prints is known."""
        target = self.target(command)
        printed = self.printed((command,)) if target else None
        if target and printed is not None:
            self.files[target] = printed


def _exits(block: Block) -> bool:
    """Whether statements end the script."""
    for statement in block:
        if isinstance(statement, Piped):
            if _exits(statement.commands):
                return True
        elif isinstance(statement, ShellGroup):
            if _exits(statement.body):
                return True
        elif isinstance(statement, ShellCommand) and statement.words and statement.words[0].text in ("exit", "return"):
            return True
    return False


def _words(statement: Statement) -> str:
    """A statement in a line, as it is written."""
    match statement:
        case ShellCommand(words=words):
            return " ".join(word.text for word in words)
        case Piped(commands=commands, is_not=is_not):
            return ("! " if is_not else "") + " | ".join(_words(command) for command in commands)
        case Listed(first=first, rest=rest):
            return _words(first) + "".join(f" {operator} {_words(piped)}" for operator, piped in rest)
    return "..."


def _placed(commands: list[tuple[ShellWord, ...]], pieces: Pieces) -> list[tuple[ShellWord, ...]]:
    """Words with the lines on which a text has them, where they follow each other in it."""
    text, at, found = text_of(pieces), 0, []
    lines = [line for own, line in pieces for _ in own]
    for command in commands:
        words = []
        for word in command:
            start = text.find(word.text, at) if word.text else -1
            words.append(word if start < 0 else replace(word, line=lines[start]))
            at = at if start < 0 else start + len(word.text)
        found.append(tuple(words))
    return found
