"""A command line of Megatron as settings, one for each flag that is written, and what is asked of them."""

import re
from collections.abc import Iterable, Iterator

from ssdsl.importers.errors import NoNumber, NoValue
from ssdsl.importers.foreign import Foreign
from ssdsl.importers.megatron.flags import FLAGS, ItemList
from ssdsl.importers.megatron.shell.follow import ShellWord
from ssdsl.record import Record, replace
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source, Span

LARGEST = 1e9  # number
LONGEST_NAME = 8  # words of `<path to data>`
NEGATIVE = re.compile(r"-\.?\d")


class FlagSetting(Record):
    """A flag as it is written, with its values; `flag` has no dashes and is that of `FLAGS`, unless nobody knows it.
    Of a file beside the source `file` is the name."""

    flag: str
    values: tuple[str, ...]
    written: str
    line: int
    file: str = ""

    @property
    def is_open(self) -> bool:
        """Whether the value is one that the source does not have."""
        return any("$" in value for value in self.values)


class FlagOutcome(Record):
    """The list in which a flag stands, and why. For a flag that became lines of the plan, `says` has the fields of
    `Widths` that these say."""

    place: ItemList
    reason: str = ""
    says: tuple[str, ...] = ()


def said(*fields: str) -> FlagOutcome:
    return FlagOutcome(ItemList.SAID, "", fields)


def became(text: str) -> FlagOutcome:
    """Of a flag that became something else than lines of widths."""
    return FlagOutcome(ItemList.SAID, text)


def silent(reason: str) -> FlagOutcome:
    return FlagOutcome(ItemList.SILENT, reason)


def refused(reason: str) -> FlagOutcome:
    return FlagOutcome(ItemList.REFUSED, reason)


class Arguments(Record):
    """Settings in the order in which they are written; of two of the same flag the last one counts."""

    settings: tuple[FlagSetting, ...]
    source: Foreign

    def last(self, *flags: str) -> FlagSetting | None:
        """The setting that counts, of one of these flags."""
        return next((own for own in reversed(self.settings) if own.flag in flags), None)

    def has(self, *flags: str) -> bool:
        return self.last(*flags) is not None

    def text(self, *flags: str, default: str = "") -> str:
        """The first value; the default where there is none, or none that the source has."""
        own = self.last(*flags)
        return own.values[0] if own is not None and own.values and not own.is_open else default

    def texts(self, *flags: str) -> tuple[str, ...]:
        own = self.last(*flags)
        return own.values if own is not None and not own.is_open else ()

    def number(self, *flags: str, default: int = 0) -> int:
        """A whole number. Raises PlanError for another value."""
        own = self.last(*flags)
        if own is None or own.is_open or not own.values or own.values[0] in ("None", "null"):
            return default
        return int(self._number(own, r"[-+]?\d+(\.0*)?"))

    def share(self, *flags: str, default: float = 0.0) -> float:
        """A number that need not be whole. Raises PlanError for another value."""
        own = self.last(*flags)
        if own is None or own.is_open or not own.values or own.values[0] in ("None", "null"):
            return default
        return self._number(own, r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")

    def _number(self, own: FlagSetting, pattern: str) -> float:
        if not re.fullmatch(pattern, own.values[0]) or abs(float(own.values[0])) > LARGEST:
            kind = "a whole number" if "e" not in pattern else "a number"
            raise PlanError(NoNumber(self.span(own), own.flag, own.values[0], kind))
        return float(own.values[0])

    def span(self, setting: FlagSetting | None) -> Span | None:
        """The place of a setting in the source."""
        if setting is None or setting.file:
            return None
        name = self.source.path.name if self.source.path is not None else "command"
        lines = self.source.text.splitlines(keepends=True)
        at = max(0, min(setting.line - 1, len(lines) - 1))
        start = sum(len(line) for line in lines[:at])
        own = lines[at] if lines else ""
        word = setting.written.split()[0] if setting.written else ""
        column = own.find(word) if word else -1
        length = len(word) if column >= 0 else len(own.strip())
        column = column if column >= 0 else len(own) - len(own.lstrip())
        return Span(Source(name, self.source.text), start + column, start + column + length)


def flag_of(word: str) -> str:
    """The known name of a flag, or the name as it is written; `-` and `_` are alike to nobody but users."""
    name = word.lstrip("-").partition("=")[0]
    if name in FLAGS:
        return name
    other = name.replace("_", "-")
    return other if other in FLAGS else name


def settings_of(words: Iterable[ShellWord]) -> tuple[list[FlagSetting], list[ShellWord]]:
    """The settings of a command line, and the words that are part of none.

    >>> found, rest = settings_of([ShellWord(text, 1) for text in "--num-layers 4 x --bf16 --lr=1".split()])
    >>> [(own.flag, own.values) for own in found], [word.text for word in rest]
    ([('num-layers', ('4',)), ('bf16', ()), ('lr', ('1',))], ['x'])
    """
    given = [*_placeholders(words)]
    settings, rest, at = list[FlagSetting](), list[ShellWord](), 0
    while at < len(given):
        word = given[at]
        at += 1
        if not is_flag(word.text):
            rest.append(word)
            continue
        name, sign, value = word.text.partition("=")
        flag = flag_of(word.text)
        values = [value] if sign else [*_values(given, at, flag)]
        at += 0 if sign else len(values)
        settings.append(FlagSetting(flag, tuple(values), _written(name, sign, values), word.line, word.file))
    return settings, rest


def _placeholders(words: Iterable[ShellWord]) -> Iterator[ShellWord]:
    """Yields words, `<path to data>` as one."""
    held: list[ShellWord] = []
    for word in words:
        held.append(word)
        text = " ".join(own.text for own in held)
        if text.count("<") <= text.count(">") or len(held) > LONGEST_NAME:
            yield replace(held[0], text=text)
            held = []
    yield from held


def is_flag(text: str) -> bool:
    return text.startswith("-") and len(text) > 1 and not NEGATIVE.match(text) and text != "--"


def _values(given: list[ShellWord], at: int, flag: str) -> Iterator[str]:
    """Yields the values of a flag: as many as it takes, and for an unknown one those up to the next."""
    kind = FLAGS[flag].values if flag in FLAGS else "=*"
    most = {"": 0, "=": 1, "=?": 1, "=3": 3}.get(kind, len(given))
    for word in given[at : at + most]:
        if is_flag(word.text):
            return
        yield word.text


def _written(name: str, sign: str, values: list[str]) -> str:
    quoted = [f'"{value}"' if not value or any(c.isspace() for c in value) else value for value in values]
    return f"{name}={quoted[0]}" if sign else " ".join([name, *quoted])


def check_values(arguments: Arguments) -> None:
    """Raises PlanError for flags that a rule reads, and that have no value where they need one."""
    wrong = [own for own in arguments.settings if own.flag in FLAGS and _lacks(own)]
    if wrong:
        raise PlanError(*(NoValue(arguments.span(own), own.flag) for own in wrong))


def _lacks(own: FlagSetting) -> bool:
    flag = FLAGS[own.flag]
    return flag.is_ruled and flag.values in ("=", "=+", "=3") and (not own.values or own.values == ("",))
