"""The header of a plan: comment lines on top, which commands read.

    # ssdsl 1
    # for: --model gpt:350m --cluster a100x1024 --set S=4

The version of the language in which the plan is written, and the options with which it is meant to be read.
"""

import re
import shlex

from ssdsl.lang.errors.header import NotAnOption, OtherVersion
from ssdsl.record import Record
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source, Span

VERSION = 1
GRAPH = ".graph"  # how the name of a file with a model's graph ends
IN_HEADER = re.compile(r"#[ \t]*(?:ssdsl[ \t]+(?P<version>\d+)[ \t]*|for:[ \t]*(?P<options>-.*))\Z")
IS_NUMBER = re.compile(r"\s*[^\s=]+\s*=\s*-?\d+\s*")
SHORT = {"-m": "--model", "-c": "--cluster", "-s": "--set"}
OPTIONS = SHORT | {option: option for option in SHORT.values()}


class Header(Record):
    """The options of a header, each with its value, in order."""

    options: tuple[tuple[str, str], ...] = ()

    def given(self, option: str) -> str | None:
        """The value of an option, the last of several."""
        return dict(self.options).get(option)

    @property
    def numbers(self) -> dict[str, int]:
        """The params that it sets."""
        pairs = (value.partition("=") for option, value in self.options if option == "--set")
        return {name.strip(): int(number) for name, _, number in pairs}


def header_of(source: Source) -> Header:
    """The header of a plan. Raises PlanError for a version that this ssdsl does not read, and for other options than
    those of a model, a cluster and params."""
    options: list[tuple[str, str]] = []
    at = 0
    for line in source.text.split("\n"):
        if line.strip() and not line.startswith("#"):
            break
        if (found := IN_HEADER.match(line.rstrip())) is not None:
            if (version := found["version"]) is not None and int(version) != VERSION:
                start = at + found.start("version")
                raise PlanError(OtherVersion(Span(source, start, start + len(version)), int(version), VERSION))
            if found["options"] is not None:
                options += _options(source, at + found.start("options"), found["options"])
        at += len(line) + 1
    return Header(tuple(options))


def _options(source: Source, start: int, text: str) -> list[tuple[str, str]]:
    span = Span(source, start, start + len(text))
    try:
        words = [part for word in shlex.split(text) for part in word.split("=", 1 if word.startswith("--") else 0)]
    except ValueError:
        words = []
    pairs = [*zip(words[::2], words[1::2], strict=False)]
    wrong = next((name for name, _ in pairs if name not in OPTIONS), "" if words and len(words) % 2 == 0 else text)
    numbers = (value for name, value in pairs if OPTIONS.get(name) == "--set" and not IS_NUMBER.fullmatch(value))
    wrong = wrong or next((f"--set {value}" for value in numbers), "")
    if wrong:
        raise PlanError(NotAnOption(span, wrong))
    return [(OPTIONS[name], value) for name, value in pairs]
