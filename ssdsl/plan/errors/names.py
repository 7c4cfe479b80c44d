"""Mistakes with names, parameters and calls of functions. Those of a single statement are in its file."""

import re

from ssdsl.lang.assets import library_names
from ssdsl.lang.suggest import joined, listed, nearest, suggest
from ssdsl.plan.errors.traced import Conflict, Traced
from ssdsl.text.edits import TextEdit
from ssdsl.text.source import Span

FOREIGN = {  # words of other languages, and what a plan writes
    "range": "a range is written with two dots: `range(2)` is `0..2`, `range(1, S)` is `1..S`",
    "print": "`ssdsl show` prints what a plan means",
    "abs": "write `x if x > 0 else -x`",
    "sum": "there is no `sum`: write the numbers with `+`",
    "None": "write `none`",
}


class UnknownName(Traced):
    """The name is not bound above this line: `let stage = balance(modle, S)`.

    Names are bound by `param`, `mesh`, `let`, `def`, `use` and `for`, above the place where they are used.
    """

    code = "E0201"
    title = "there is no `{name}` here"
    name: str
    known: tuple[str, ...]
    is_of_param: bool = False  # whether it stands in the default of a `param`, which takes numbers alone

    @property
    def change(self) -> str:
        """The file of the standard library that has the name, else the name that was meant."""
        name = self.name
        if self.is_of_param:
            return suggest(name, self.known) or "write a number such as `2`, or a `param` that stands above"
        if name in library_names():
            return f"write `use {library_names()[name]}: {name}` above this line"
        if name in FOREIGN:
            return FOREIGN[name]
        if found := suggest(name, self.known):
            return found
        if found := suggest(name, library_names()):
            return f"{found} They come by `use`: `ssdsl plans` lists them"
        return f"bind it above this line, such as by `let {name} = ...`; devices are declared by `mesh {name}(dp = 2)`"

    @property
    def instead(self) -> tuple[str, ...]:
        if self.name in FOREIGN or (self.name in library_names() and not self.is_of_param):
            return ()
        return nearest(self.name, self.known)

    def edits(self) -> tuple[TextEdit, ...]:
        if self.span is None or self.is_of_param or self.name not in library_names():
            return super().edits()
        found = re.search(r"(?m)^(?=[^#\s])", self.span.source.text)
        first = found.start() if found else 0
        return (TextEdit.above(Span(self.span.source, first, first), f"use {library_names()[self.name]}: {self.name}"),)


class NameTaken(Conflict):
    """A name is bound twice: `let x = 1`, then `let x = 2`. A name in a plan means one thing."""

    code = "E0202"
    title = "`{name}` is already bound"
    label = "bound again here"
    note = "{what}"
    help = "choose another name"
    earlier = "bound here first"
    name: str
    has_meaning: str = ""  # where nothing in the plan bound it: "a word that every plan has"

    @property
    def what(self) -> str:
        return f"`{self.name}` is {self.has_meaning}" if self.has_meaning else ""


class UnknownParam(Traced):
    """`--set` names a parameter that the plan does not have: `--set TP=4` where the plan says `param T = 2`."""

    code = "E0225"
    title = "the plan has no parameter `{name}`"
    note = "it has {has}"
    name: str
    value: int
    known: tuple[str, ...]

    @property
    def has(self) -> str:
        return listed(self.known) or "none"

    @property
    def change(self) -> str:
        if not self.known:
            return f"leave `--set {self.name}={self.value}` out, or add `param {self.name} = ...` to the plan"
        return suggest(self.name, self.known) or f"set one that it has, such as `--set {self.known[0]}={self.value}`"


class WrongArguments(Traced):
    """A function is called with other arguments than it takes: `gpipe(stage)` instead of `gpipe(stage, M)`."""

    code = "E0229"
    title = "`{name}` takes {takes}"
    label = "given {given}"
    name: str
    formals: tuple[str, ...] | str  # the names of a plan's function; in words, what a built-in one takes
    positional: int
    keyed: tuple[str, ...]

    @property
    def takes(self) -> str:
        if isinstance(self.formals, str):
            return self.formals
        return f"({', '.join(self.formals)})" if self.formals else "no arguments"

    @property
    def given(self) -> str:
        number = self.positional + len(self.keyed)
        keys = joined([f"`{name}`" for name in self.keyed], "and")
        return f"{number} argument{'' if number == 1 else 's'}{', among them ' if keys else ''}{keys}"

    @property
    def change(self) -> str:
        """The correct form of the call, or the argument whose name is misspelt."""
        if isinstance(self.formals, str):
            words = self.takes if " or (" in self.takes else self.takes.strip("()")
            return f"give {words}, without names" if self.keyed and "=" not in words else f"give {words}"
        unknown = [name for name in self.keyed if name not in self.formals]
        found = suggest(unknown[0], self.formals) if unknown else ""
        return found or f"write `{self.name}({', '.join(self.formals)})`"


class Recursion(Traced):
    """A function calls itself, directly or through others. Plans have no recursion, so every plan ends."""

    code = "E0230"
    title = "`{name}` calls itself"
    help = "use `for s in 0..S:`"
    name: str


class TooManySteps(Traced):
    """The plan takes more steps than any plan needs: `for i in 0..1000000000000:`.

    A step is a statement, a turn of a loop or a call. A pipeline of 128 stages and 512 micro-batches takes
    200,000.
    """

    code = "E0231"
    title = "the plan takes more than {limit:,} steps"
    help = "shorten the loops"
    limit: int


class CallsTooDeep(Traced):
    """Functions call functions that call functions, deeper than anybody reads."""

    code = "E0232"
    title = "calls are nested too deeply"
    help = "reduce the depth of nested calls"


class NeverUsed(Traced):
    """A plan declares a `param` or a `dim` and does not use it: `--set` of it would change nothing."""

    code = "E0273"
    severity = "warning"
    title = "`{name}` is never used"
    help = "remove this `{keyword}`, or use `{name}` below it"
    keyword: str
    name: str

    def edits(self) -> tuple[TextEdit, ...]:
        return () if self.span is None else (TextEdit.line(self.span, ""),)
