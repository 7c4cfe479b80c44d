"""The commands that a shell script would run, without running any: variables, conditions and files are followed as bash
does. What the script asks its environment is taken as unset, and said."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

from ssdsl.importers.megatron.arithmetic import value_of
from ssdsl.importers.megatron.shell_parse import (
    Block,
    Case,
    Command,
    Function,
    Group,
    If,
    Listed,
    Loop,
    Piped,
    Statement,
    parse,
)
from ssdsl.importers.megatron.shell_text import (
    ASSIGNMENT,
    NAME,
    Pieces,
    Token,
    array_words,
    joined,
    line_of,
    pieces_of,
    skip,
    text_of,
    tokens,
    words_of,
)
from ssdsl.record import Record, replace

DEEPEST = 40  # files that read files, functions that call themselves
MOST = 200_000  # statements, for loops of loops
LARGEST = 1 << 20  # characters of a value
UNKNOWN = re.compile(r"\$\{?(\w+|[@*#])|\$\((\w*)")
FILE_TESTS = {f"-{letter}" for letter in "abcdefghkprstuwxGLNOS"}
RUNS_TEXT = {"bash", "sh", "zsh", "/bin/bash", "/bin/sh"}
NO_LAUNCH = {
    "echo",
    "printf",
    "cat",
    "grep",
    "sed",
    "tee",
    "mkdir",
    "rm",
    "cp",
    "mv",
    "cd",
    "set",
    "pip",
    "pip3",
    "git",
}
LAUNCHERS = re.compile(
    r"(?:.*/)?(?:torchrun|deepspeed|python[\d.]*|srun|mpirun|mpiexec|accelerate|ft_launcher|uv|nsys|numactl|sbatch"
    r"|docker|torch\.distributed\.\w+)"
)
COMPARED = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}


class Word(Record):
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


class Script(Record):
    """What a script would do: commands with `export` and the like left out, files that it writes, what was assumed, and
    the values that its variables have at its end."""

    commands: tuple[tuple[Word, ...], ...]
    files: dict[str, str]
    assumed: tuple[Assumed, ...]
    variables: dict[str, tuple[Word, ...]]
    options: tuple[Word, ...]  # of `#SBATCH`


def run(text: str, path: Path | None) -> Script:
    """Follow a script; files that it reads are looked for beside it."""
    shell = _Shell(path)
    shell.block(parse(tokens(text)))
    named = {
        name: tuple(Word(text_of(word), line_of(word)) for value in values.values() for word in words_of(value))
        for name, values in shell.variables.items()
    }
    return Script(tuple(shell.commands), shell.files, tuple(shell.assumed), named, (*_options(text), *shell.options))


def _options(text: str) -> tuple[Word, ...]:
    """The words of `#SBATCH` comments."""
    found = []
    for n, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"\s*#SBATCH\s+(.*)", line):
            found += [Word(word, n) for word in match[1].partition(" #")[0].split()]
    return tuple(found)


class _Stop(Exception):
    """The script or a function ends here."""


class _Shell:
    """The state of a script while it is followed."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.file, self.depth, self.steps = path, "", 0, 0
        self.variables: dict[str, dict[str, Pieces]] = {}
        self.functions: dict[str, Block] = {}
        self.arguments: list[Pieces] | None = None
        self.commands: list[tuple[Word, ...]] = []
        self.files: dict[str, str] = {}
        self.assumed: list[Assumed] = []
        self.options: list[Word] = []

    # -- statements ----------------------------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        try:
            for statement in block:
                self.statement(statement)
        except _Stop:
            if self.depth:
                raise

    def statement(self, statement: Statement) -> None:
        self.steps += 1
        if self.steps > MOST:
            raise _Stop
        match statement:
            case Command():
                self.command(statement)
            case Piped(commands=commands):
                self.piped(commands)
            case Listed():
                self.listed(statement)
            case If():
                self.conditional(statement)
            case Loop():
                self.loop(statement)
            case Case():
                self.case(statement)
            case Function(name=name, body=body):
                self.functions[name] = body
            case Group(body=body):
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

    def status(self, statement: Statement) -> tuple[bool, str]:
        """Whether a command succeeds, which it does if nothing else is known, and why that is not known."""
        if isinstance(statement, Piped) and len(statement.commands) == 1:
            is_true, reason = self.status(statement.commands[0])
            return is_true != statement.is_not, reason
        if isinstance(statement, Group):
            return self.status(statement.body[-1]) if statement.body else (True, "")
        if isinstance(statement, Listed):
            return self.all_of(statement)
        if isinstance(statement, Command) and statement.words:
            word = statement.words[0].text
            if word in ("[", "[[", "test") or word.startswith("(("):
                return self.tested(statement)
            if word in ("true", ":", "false"):
                return word != "false", ""
        self.statement(statement)
        return True, ""

    def all_of(self, listed: Listed) -> tuple[bool, str]:
        """Whether conditions with `&&` and `||` between them hold."""
        is_true, reason = self.decided(listed.first)
        for operator, piped in listed.rest:
            if is_true == (operator == "&&"):
                is_true, further = self.decided(piped)
                reason = reason or further
        return is_true, reason

    def decided(self, statement: Statement) -> tuple[bool, str]:
        """The status of a condition; a command that is no test is taken to fail."""
        if isinstance(statement, Piped) and len(statement.commands) == 1:
            is_true, reason = self.decided(statement.commands[0])
            return is_true != statement.is_not, reason
        if isinstance(statement, Listed):
            return self.all_of(statement)
        if isinstance(statement, Command) and statement.words:
            word = statement.words[0].text
            if word in ("[", "[[", "test", "true", ":", "false") or word.startswith("(("):
                return self.status(statement)
            return False, f"`{word}` is not run"
        if isinstance(statement, Group) and statement.body:
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

    def loop(self, loop: Loop) -> None:
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
            self.inner(loop.body)
        elif not loop.head or self.decided(loop.head[-1]) == (True, ""):
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
        target = self.target(last) if isinstance(last, Command) else ""
        if printed is not None and target:
            self.files[target] = printed
            return
        for command in commands:
            self.statement(command)

    # -- commands ------------------------------------------------------------------------------------------------------

    def command(self, command: Command) -> None:
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
                at = next((k for k, own in enumerate(rest) if self.beside(text_of(own)) is not None), None)
                if at is not None:
                    self.options += self.word_list(rest[:at])
                    self.source(rest[at:])
                    return True
        return False

    def other(self, fields: list[Pieces]) -> None:
        if text_of(fields[0]) not in NO_LAUNCH:
            self.commands.append(self.word_list(fields))

    def word_list(self, fields: list[Pieces]) -> tuple[Word, ...]:
        return tuple(Word(text_of(field), line_of(field), self.file) for field in fields)

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
        """Follow a text that was made: `eval`, `sh -c`. Lines are those in which its parts were written."""
        if self.depth >= DEEPEST:
            return
        self.depth += 1
        try:
            text, lines = text_of(pieces), _lines_of(pieces)
            found = tokens(text)
            placed = [replace(token, line=line) for token, line in zip(found, _places(found, text, lines), strict=True)]
            self.inner(parse(placed))
        finally:
            self.depth -= 1

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

    def beside(self, name: str) -> Path | None:
        """The file that a script means by a name, of which a folder may be unknown."""
        if self.path is None or not name:
            return None
        parts = Path(name).parts
        unknown = [n for n, part in enumerate(parts) if "$" in part or part == "/"]
        known = parts[unknown[-1] + 1 :] if unknown else parts
        folder = self.path.parent
        for path in (folder.joinpath(*known), folder / Path(name).name):
            if path.is_file() and path.stat().st_size < LARGEST:
                return path
        return None

    def read(self, command: Command, fields: list[Pieces], separators: str) -> None:
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

    def writes(self, command: Command) -> None:
        """A file that a command writes, if what it prints is known."""
        target = self.target(command)
        printed = self.printed((command,)) if target else None
        if target and printed is not None:
            self.files[target] = printed

    def target(self, command: Command) -> str:
        found = [word for operator, word in command.redirects if operator.text in (">", ">>", ">|")]
        return text_of(joined(self.expand(found[-1].text, found[-1].line))) if found else ""

    def printed(self, commands: tuple[Statement, ...]) -> str | None:
        """What a pipe prints, None if that is not known."""
        text: str | None = None
        for command in commands:
            if not isinstance(command, Command):
                return None
            text = self.print_of(command, text)
            if text is None:
                return None
        return text

    def print_of(self, command: Command, given: str | None) -> str | None:
        body = next((operator for operator, _ in command.redirects if operator.body), None)
        if body is not None:
            mark = next(word.text for operator, word in command.redirects if operator is body)
            is_raw = any(quote in mark for quote in "'\"\\")
            given = body.body if is_raw else text_of(joined(self.quoted(body.body, body.body_line)))
        words = [text_of(field) for word in command.words for field in self.expand(word.text, word.line)]
        match words:
            case ["echo", *rest]:
                return " ".join(rest[1:] if rest[:1] in (["-e"], ["-n"]) else rest)
            case ["cat", *names] if given is None and names:
                texts = [self.file_text(name) for name in names]
                return None if None in texts else "".join(text for text in texts if text is not None)
            case ["cat", *_] | [] | ["tee", *_]:
                return given
            case ["sed", *rest] if given is not None or rest:
                return self.replaced(rest, given)
            case ["bc", *_] if given is not None and "$" not in given:
                value = value_of(re.sub(r"scale\s*=\s*\d+\s*;", "", given), "scale" not in given)
                return None if value is None else f"{value:g}" if isinstance(value, float) else str(value)
            case ["expr", *rest]:
                value = value_of(" ".join(rest))
                return None if value is None else str(value)
            case ["basename", name, *ends] if "$" not in name:
                return Path(name).name.removesuffix(ends[0] if ends else "")
            case ["tr", "-d", *_] if given is not None:
                return given.strip()
        return None

    def file_text(self, name: str) -> str | None:
        """A file that the script has written, or one beside it."""
        path = self.beside(name)
        return self.files.get(name) or (path.read_text("utf-8", "replace") if path is not None else None)

    def replaced(self, words: list[str], given: str | None) -> str | None:
        """What `sed` with substitutions prints."""
        rules = [word for word in words if re.match(r"s(\W).*\1.*\1", word, re.DOTALL)]
        names = [word for word in words if word not in rules and not word.startswith("-")]
        text = given if given is not None else self.file_text(names[-1]) if names else None
        for rule in rules if text is not None else ():
            _, pattern, new, flags = rule.split(rule[1], 3)
            text = (text or "").replace(pattern, new, -1 if "g" in flags else (text or "").count("\n") + 1)
        return text

    # -- conditions ----------------------------------------------------------------------------------------------------

    def tested(self, command: Command) -> tuple[bool, str]:
        first = command.words[0]
        if first.text.startswith("(("):
            found = text_of(self.arithmetic(first.text[2:-2], first.line))
            return ("$" not in found and found != "0"), self.unknown(found)
        words = [text_of(joined(self.expand(word.text, word.line, False))) for word in command.words[1:]]
        redirects = [(operator.text, word.text) for operator, word in command.redirects if operator.text in "<>"]
        words += [part for pair in redirects for part in pair]
        words = words[:-1] if words and words[-1] in ("]", "]]") else words
        return self.test(words)

    def test(self, words: list[str]) -> tuple[bool, str]:
        for joint, is_any in (("||", True), ("-o", True), ("&&", False), ("-a", False)):
            if joint in words[1:-1]:
                at = words.index(joint, 1)
                left, right = self.test(words[:at]), self.test(words[at + 1 :])
                if left[0] == is_any and not left[1]:
                    return left
                if right[0] == is_any and not right[1]:
                    return right
                return (left[0] or right[0] if is_any else left[0] and right[0]), left[1] or right[1]
        match words:
            case ["!", *rest]:
                is_true, reason = self.test(rest)
                return not is_true, reason
            case ["-z", value]:
                return not self.known(value), self.unknown(value)
            case ["-n", value] | [value]:
                return bool(self.known(value)), self.unknown(value)
            case ["-v", name]:
                return name in self.variables, "" if name in self.variables else f"`{name}` is of the environment"
            case [flag, name] if flag in FILE_TESTS:
                return False, f"whether `{name}` exists is not looked up"
            case [left, operator, right]:
                return self.compared(left, operator, right)
        return False, "" if not words else "this test is not understood"

    def compared(self, left: str, operator: str, right: str) -> tuple[bool, str]:
        reason = self.unknown(left) or self.unknown(right)
        left, right = self.known(left), self.known(right)
        if operator in ("=", "=="):
            return fnmatchcase(left, right), reason
        if operator == "!=":
            return not fnmatchcase(left, right), reason
        if operator == "=~":
            try:
                return re.search(right, left) is not None, reason
            except re.error:
                return False, "this test is not understood"
        value = value_of(f"({left or 0}) {COMPARED.get(operator, operator)} ({right or 0})")
        return bool(value), reason if value is not None else reason or "this test is not understood"

    def known(self, value: str) -> str:
        """A value, as if everything were empty that is not known of it."""
        return "" if UNKNOWN.search(value) else value

    def unknown(self, value: str) -> str:
        """The reason why a value is not known, or ""."""
        match = UNKNOWN.search(value)
        if match is None:
            return ""
        if match[2] is not None:
            return f"`{match[2]}` is not run"
        own = match[1]
        return f"`${own}` is given to the script" if not own[0].isalpha() else f"`{own}` is of the environment"

    # -- expansions ----------------------------------------------------------------------------------------------------

    def expand(self, raw: str, line: int, is_split: bool = True) -> list[Pieces]:
        """The words that bash makes of one; without `is_split` one word."""
        fields: list[list[tuple[str, int]]] = []
        now: list[tuple[str, int]] | None = None
        at = 0

        def add(pieces: Pieces) -> None:
            nonlocal now
            now = [*(now or []), *pieces]

        def several(values: list[Pieces], ends: bool) -> None:
            """Words of an expansion: the first goes on with what is before it, the last with what follows."""
            nonlocal now
            for n, value in enumerate(values):
                if n or (ends and now == []):
                    fields.append(now or [])
                    now = None
                add(value)

        while at < len(raw):
            here, end = raw[at], skip(raw, at)
            own = raw[at:end]
            if here == "\\":
                if own not in ("\\\n", "\\\r\n"):
                    add(((own[1:], line),))
            elif here == "'":
                add(pieces_of(own[1:-1], line))
            elif here == '"':
                values = self.quoted(own[1:-1], line)
                if not values and now is None and own == '""':
                    add((("", line),))
                several(values, False)
            elif here in "$`":
                if here == "$" and raw[at + 1 : at + 2] in ("'", '"'):
                    end = at + 1
                else:
                    values, end = self.value(raw, at, line)
                    if is_split:
                        text = "".join(text_of(value) for value in values)
                        parts = [word for value in values for word in words_of(value)]
                        if parts and text[:1].isspace() and now is not None:
                            fields.append(now)
                            now = None
                        several(parts, False)
                        if parts and text[-1:].isspace() and now is not None:
                            fields.append(now)
                            now = None
                    else:
                        add(joined(values))
            else:
                add(((here, line),))
            line += raw[at:end].count("\n")
            at = end
        if now is not None:
            fields.append(now)
        if not is_split:
            return [tuple(piece for field in fields for piece in field)]
        return [_merged(field) for field in fields if field or raw[:1] in "\"'"]

    def quoted(self, text: str, line: int) -> list[Pieces]:
        """What stands between double quotes; `"${X[@]}"` may be several words, or none."""
        if re.fullmatch(r"\$(@|\{@\}|\{\w+\[@\](:[-+]?\w*)?\})", text):
            return self.value(text, 0, line)[0]
        found: list[tuple[str, int]] = []
        at = 0
        while at < len(text):
            here = text[at]
            if here == "\\" and text[at + 1 : at + 2] in ("$", '"', "\\", "`", "\n"):
                if text[at + 1] != "\n":
                    found.append((text[at + 1], line))
                line += text[at + 1] == "\n"
                at += 2
            elif here in "$`" and at + 1 < len(text):
                values, end = self.value(text, at, line)
                found += joined(values)
                line += text[at:end].count("\n")
                at = end
            else:
                found.append((here, line))
                line += here == "\n"
                at += 1
        return [_merged(found)]

    def value(self, raw: str, at: int, line: int) -> tuple[list[Pieces], int]:
        """What stands for the expansion at this place, and where it ends."""
        end = skip(raw, at)
        own = raw[at:end]
        if own.startswith("$((") and own.endswith("))"):
            return [self.arithmetic(own[3:-2], line)], end
        if own.startswith("$("):
            return [self.substituted(own[2:-1], line)], end
        if own.startswith("`"):
            return [self.substituted(own[1:-1], line)], end
        if own.startswith("${"):
            return self.parameter(own[2:-1], line), end
        if match := NAME.match(raw, at + 1):
            return self.named(match[0], "0", line), match.end()
        if raw[at + 1 : at + 2] and raw[at + 1] in "@*#?!$-0123456789":
            return self.positional(raw[at + 1], line), at + 2
        return [((own, line),)], end

    def named(self, name: str, index: str, line: int) -> list[Pieces]:
        values = self.variables.get(name)
        if values is None:
            return [((f"${name}", line),)]
        if index in ("@", "*"):
            return [*values.values()]
        return [values[index]] if index in values else []

    def positional(self, name: str, line: int) -> list[Pieces]:
        given = self.arguments
        if name in "@*":
            return [((f"${name}", line),)] if given is None else [*given]
        if name == "#":
            return [((str(len(given or [])), line),)]
        if name.isdigit() and name != "0" and given is not None:
            return [given[int(name) - 1]] if int(name) <= len(given) else []
        return [((f"${name}", line),)]

    def parameter(self, text: str, line: int) -> list[Pieces]:
        """`${NAME}`, with an index or an operator behind the name."""
        if text.startswith("#"):
            match = re.fullmatch(r"#(\w+|@|\*)(\[[@*]\])?", text)
            if match:
                values = self.variables.get(match[1], {}) if match[1].isidentifier() else {}
                count = len(values) if match[2] else len(text_of(values.get("0", ())))
                return [((str(count), line),)]
        match = re.match(r"(!?)(\w+|@|\*)(\[((?:[^]\[]|\[[^]]*\])*)\])?", text)
        if match is None:
            return [((f"${{{text}}}", line),)]
        name = match[2]
        if match[1]:
            name = text_of(joined(self.named(name, "0", line)))
        index = text_of(joined(self.expand(match[4], line))) if match[4] is not None else "0"
        if name.isidentifier():
            is_set, values = name in self.variables, self.named(name, index, line)
        else:
            values = self.positional(name, line)
            is_set = not any(UNKNOWN.search(text_of(value)) for value in values)
        return self.operated(values, is_set, text[match.end() :], name, line)

    def operated(self, values: list[Pieces], is_set: bool, rest: str, name: str, line: int) -> list[Pieces]:
        text = text_of(joined(values))
        match = re.match(r":?[-=+?]", rest)
        if match is not None:
            operator, word = match[0], rest[match.end() :]
            has_value = is_set and (bool(text) or ":" not in operator)
            if operator[-1] == "+":
                return self.expand(word, line, False) if has_value else []
            if has_value or operator[-1] == "?":
                return values
            found = self.expand(word, line, False)
            if operator[-1] == "=" and name.isidentifier():
                self.variables[name] = {"0": found[0] if found else ()}
            return found
        if not rest or not is_set:
            return values
        return [((_cut(text_of(value), rest), line_of(value)),) for value in values]

    def arithmetic(self, text: str, line: int) -> Pieces:
        inner = text_of(joined(self.quoted(text, line)))
        for _ in range(8):  # variables may name others
            found = re.sub(r"(?<![\w$])[A-Za-z_]\w*", lambda m: self.number(m[0]), inner)
            if found == inner:
                break
            inner = found
        value = value_of(inner) if "$" not in inner else None
        names = UNKNOWN.search(inner)
        return ((str(value) if value is not None else f"${names[1] or names[2] if names else '((...))'}", line),)

    def number(self, name: str) -> str:
        text = text_of(joined(self.named(name, "0", 0)))
        return text if text.startswith("$") else f"({text or 0})"

    def substituted(self, text: str, line: int) -> Pieces:
        """What a command prints, as far as that is known without running it."""
        block = parse(tokens(text, line))
        if len(block) == 1 and self.depth < DEEPEST:
            only = block[0]
            commands = only.commands if isinstance(only, Piped) else (only,)
            printed = self.printed(commands)
            if printed is not None:
                return pieces_of(printed.rstrip("\n"), line)
        first = re.match(r"\s*([\w./-]*)", text)
        return ((f"$({first[1] if first else ''})", line),)


def _cut(text: str, rest: str) -> str:
    """`${X%.sh}`, `${X##*/}`, `${X/a/b}`, `${X,,}`, `${X:2:3}`."""
    if match := re.fullmatch(r"(##?|%%?)(.*)", rest, re.DOTALL):
        operator, pattern = match.groups()
        ends = range(len(text) + 1)
        if operator[0] == "#":
            fits = [n for n in ends if fnmatchcase(text[:n], pattern)]
            return text[(fits[-1] if operator == "##" else fits[0]) :] if fits else text
        fits = [n for n in ends if fnmatchcase(text[n:], pattern)]
        return text[: (fits[0] if operator == "%%" else fits[-1])] if fits else text
    if match := re.fullmatch(r"/(/?)([^/]*)/?(.*)", rest, re.DOTALL):
        return text.replace(match[2], match[3], -1 if match[1] else 1) if match[2] else text
    if rest in (",,", ","):
        return text.lower()
    if rest in ("^^", "^"):
        return text.upper()
    if match := re.fullmatch(r":\s*(\d+)(?::\s*(\d+))?", rest):
        start = int(match[1])
        return text[start : start + int(match[2])] if match[2] else text[start:]
    return text


def _merged(field: list[tuple[str, int]]) -> Pieces:
    """Neighbouring pieces of a line as one."""
    found: list[tuple[str, int]] = []
    for text, line in field:
        if found and found[-1][1] == line:
            found[-1] = (found[-1][0] + text, line)
        else:
            found.append((text, line))
    return tuple(found)


def _exits(block: Block) -> bool:
    """Whether statements end the script."""
    for statement in block:
        if isinstance(statement, Piped):
            if _exits(statement.commands):
                return True
        elif isinstance(statement, Group):
            if _exits(statement.body):
                return True
        elif isinstance(statement, Command) and statement.words and statement.words[0].text in ("exit", "return"):
            return True
    return False


def _words(statement: Statement) -> str:
    """A statement in a line, as it is written."""
    match statement:
        case Command(words=words):
            return " ".join(word.text for word in words)
        case Piped(commands=commands, is_not=is_not):
            return ("! " if is_not else "") + " | ".join(_words(command) for command in commands)
        case Listed(first=first, rest=rest):
            return _words(first) + "".join(f" {operator} {_words(piped)}" for operator, piped in rest)
    return "..."


def _lines_of(pieces: Pieces) -> list[int]:
    """The line of each character."""
    return [line for text, line in pieces for _ in text]


def _places(found: list[Token], text: str, lines: list[int]) -> list[int]:
    """The line in which each token of a text was written."""
    at, places = 0, []
    for token in found:
        start = text.find(token.text, at)
        start = at if start < 0 else start
        places.append(lines[min(start, len(lines) - 1)] if lines else token.line)
        at = start + len(token.text)
    return places
