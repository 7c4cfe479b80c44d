"""Mistakes with values: numbers, lists and what is expected where."""

from dataclasses import dataclass

from ssdsl.plan.errors.traced import Traced
from ssdsl.text.diagnostic import Diagnostic


@dataclass(frozen=True)
class WrongType(Traced, Diagnostic):
    """A value of one kind stands where another is needed: `split 3 by batch into dp`."""

    code = "E0210"
    title = "expected {expected}, found {found}"
    help = "{help_text}"
    expected: str
    found: str
    help_text: str


@dataclass(frozen=True)
class NoSuchItem(Traced, Diagnostic):
    """A list has no item at this position; positions begin at 0: `stage[S]` of S stages."""

    code = "E0211"
    title = "there is no item {position} in a list of {length}"
    help = "{help_text}"
    position: int
    length: int
    help_text: str


@dataclass(frozen=True)
class DivisionByZero(Traced, Diagnostic):
    """`//` and `%` by zero."""

    code = "E0212"
    title = "division by zero"


@dataclass(frozen=True)
class NumberTooLarge(Traced, Diagnostic):
    """A number beyond 2^62. No count in a plan is that large."""

    code = "E0213"
    title = "this number is too large"


@dataclass(frozen=True)
class NoSuchAttribute(Traced, Diagnostic):
    """Only selections have something behind a dot: `.fwd`, `.weights`, `.linear`."""

    code = "E0214"
    title = "{found} has no `.{name}`"
    found: str
    name: str
