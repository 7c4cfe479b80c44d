"""What variables and expansions of a shell script stand for, as far as that is known without running it."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

from ssdsl.importers.megatron.shell.arithmetic import value_of
from ssdsl.importers.megatron.shell.parse import Piped, ShellCommand, Statement, parse
from ssdsl.importers.megatron.shell.words import (
    NAME,
    Pieces,
    joined,
    line_of,
    pieces_of,
    skip,
    text_of,
    tokens,
    words_of,
)

DEEPEST = 40  # files that read files, functions that call themselves
LARGEST = 1 << 20  # characters of a value
UNKNOWN = re.compile(r"\$\{?(\w+|[@*#])|\$\((\w*)")


class Values:
    """Variables by their indices, what the script was given, and the files that it has written, with their texts. What
    is not known stands as `$NAME`, or as `$(command)`."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.depth = path, 0
        self.variables: dict[str, dict[str, Pieces]] = {}
        self.arguments: list[Pieces] | None = None
        self.files: dict[str, str] = {}

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
            return [((f"${name}" if given is None else str(len(given)), line),)]
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
            found, is_set = self.named(name, index, line), name in self.variables
        else:
            found = self.positional(name, line)
            is_set = not any(UNKNOWN.search(text_of(value)) for value in found)
        return self.operated(found, is_set, text[match.end() :], name, line)

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

    # -- what commands print -------------------------------------------------------------------------------------------

    def target(self, command: ShellCommand) -> str:
        found = [word for operator, word in command.redirects if operator.text in (">", ">>", ">|")]
        return text_of(joined(self.expand(found[-1].text, found[-1].line))) if found else ""

    def printed(self, commands: tuple[Statement, ...]) -> str | None:
        """What a pipe prints, None if that is not known."""
        text: str | None = None
        for command in commands:
            if not isinstance(command, ShellCommand):
                return None
            text = self.print_of(command, text)
            if text is None:
                return None
        return text

    def print_of(self, command: ShellCommand, given: str | None) -> str | None:
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
