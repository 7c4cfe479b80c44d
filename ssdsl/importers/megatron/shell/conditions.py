"""Conditions of a shell script: whether they hold, or would if all that is not known were empty."""

import re
from fnmatch import fnmatchcase

from ssdsl.importers.megatron.shell.arithmetic import value_of
from ssdsl.importers.megatron.shell.parse import ShellCommand
from ssdsl.importers.megatron.shell.values import UNKNOWN, Values
from ssdsl.importers.megatron.shell.words import joined, text_of

FILE_TESTS = {f"-{letter}" for letter in "abcdefghkprstuwxGLNOS"}
COMPARED = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}
# Whether a condition holds, and why that is not known, or "".
Answer = tuple[bool, str]


class Tests(Values):
    """Values that are compared."""

    def tested(self, command: ShellCommand) -> Answer:
        first = command.words[0]
        if first.text.startswith("(("):
            found = text_of(self.arithmetic(first.text[2:-2], first.line))
            return ("$" not in found and found != "0"), self.unknown(found)
        words = [text_of(joined(self.expand(word.text, word.line, False))) for word in command.words[1:]]
        redirects = [(operator.text, word.text) for operator, word in command.redirects if operator.text in "<>"]
        words += [part for pair in redirects for part in pair]
        words = words[:-1] if words and words[-1] in ("]", "]]") else words
        return self.test(words)

    def test(self, words: list[str]) -> Answer:
        for joint, is_any in (("||", True), ("-o", True), ("&&", False), ("-a", False)):
            if joint in words[1:-1]:
                at = words.index(joint, 1)
                return self.both(self.test(words[:at]), self.test(words[at + 1 :]), is_any)
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

    def both(self, first: Answer, second: Answer, is_any: bool) -> Answer:
        """The answer for two conditions; one that is known may decide alone."""
        for answer in (first, second):
            if answer[0] == is_any and not answer[1]:
                return answer
        holds = first[0] or second[0] if is_any else first[0] and second[0]
        return holds, first[1] or second[1]

    def compared(self, left: str, operator: str, right: str) -> Answer:
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
