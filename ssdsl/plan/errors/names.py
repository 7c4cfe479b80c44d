"""Mistakes with names, parameters and functions."""

from dataclasses import dataclass

from ssdsl.plan.errors.traced import Traced
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Span


@dataclass(frozen=True)
class UnknownName(Traced, Diagnostic):
    """A name that nothing has bound before this line: `let stage = balance(modle, S)`.

    Names are bound by `param`, `mesh`, `let`, `def`, `use` and `for`, above the place where they are used.
    """

    code = "E0201"
    title = "there is no `{name}` here"
    help = "{suggestion}"
    name: str
    suggestion: str


@dataclass(frozen=True)
class NameTaken(Traced, Diagnostic):
    """A name is bound twice: `let x = 1`, then `let x = 2`. A name in a plan means one thing."""

    code = "E0202"
    title = "`{name}` is already bound"
    label = "bound again here"
    note = "{note_text}"
    help = "choose another name"
    name: str
    first: Span | None
    note_text: str

    def others(self) -> tuple[tuple[Span, str], ...]:
        first = ((self.first, "bound here first"),) if self.first else ()
        return (*first, *super().others())


@dataclass(frozen=True)
class UnknownParam(Traced, Diagnostic):
    """`--set` names a parameter that the plan does not have: `--set TP=4` where the plan says `param T = 2`."""

    code = "E0225"
    title = "the plan has no parameter `{name}`"
    note = "{known}"
    help = "{suggestion}"
    name: str
    suggestion: str
    known: str


@dataclass(frozen=True)
class NotConstant(Traced, Diagnostic):
    """The default of a parameter is a number made of numbers and earlier parameters: `param M = 2 * S`.

    So the plan's parameters can be listed without a model.
    """

    code = "E0226"
    title = "the default of a parameter cannot depend on `{name}`"
    help = "use numbers, earlier parameters, `min` and `max`; other values are bound by `let`"
    name: str


@dataclass(frozen=True)
class MisplacedParam(Traced, Diagnostic):
    """`param` stands in a function, a loop or a condition. The parameters of a plan are fixed and stand at its top."""

    code = "E0227"
    title = "`param` stands inside a block"
    help = "move it to the top of the plan"


@dataclass(frozen=True)
class RequireFailed(Traced, Diagnostic):
    """The plan's own precondition, a `require`, does not hold for these parameters and this model."""

    code = "E0228"
    title = "{why}"
    label = "this does not hold"
    note = "{values}"
    help = "choose other parameters with `--set`"
    why: str
    values: str


@dataclass(frozen=True)
class WrongArguments(Traced, Diagnostic):
    """A function is called with other arguments than it takes: `gpipe(stage)` where it is `gpipe(stage, M)`."""

    code = "E0229"
    title = "`{name}` takes {takes}"
    label = "{given}"
    name: str
    takes: str
    given: str


@dataclass(frozen=True)
class Recursion(Traced, Diagnostic):
    """A function calls itself, directly or through others. Plans have no recursion, so every plan ends."""

    code = "E0230"
    title = "`{name}` calls itself"
    help = "use `for s in 0..S:`"
    name: str


@dataclass(frozen=True)
class TooManySteps(Traced, Diagnostic):
    """The plan takes more steps than any plan needs: `for i in 0..1000000000000:`.

    A step is a statement, a turn of a loop or a call. A pipeline of 16 stages and 512 micro-batches takes 75,000.
    """

    code = "E0231"
    title = "the plan takes more than {limit} steps"
    help = "shorten the loops"
    limit: str


@dataclass(frozen=True)
class CallsTooDeep(Traced, Diagnostic):
    """Functions call functions that call functions, deeper than anybody reads."""

    code = "E0232"
    title = "calls are nested too deeply"
    help = "call fewer functions from within functions"


@dataclass(frozen=True)
class MisplacedReturn(Traced, Diagnostic):
    """`return` gives the value of a function; outside of a function there is nothing to return from."""

    code = "E0233"
    title = "`return` stands outside of a function"
    help = "remove it, or bind the value with `let`"


@dataclass(frozen=True)
class NoSuchLibrary(Traced, Diagnostic):
    """`use` names a file that does not exist: `use pipelin: gpipe`.

    A bare name is a file of the standard library (`ssdsl plans` lists them); a string is a file beside the plan.
    """

    code = "E0234"
    title = "there is no `{name}` to use"
    help = "{suggestion}"
    name: str
    suggestion: str


@dataclass(frozen=True)
class UseOutside(Traced, Diagnostic):
    """`use` takes files beside the plan or in folders below it, and never any other, also not through a link."""

    code = "E0235"
    title = "`{name}` is outside of the plan's folder"
    help = "put the file beside the plan"
    name: str


@dataclass(frozen=True)
class NotInFile(Traced, Diagnostic):
    """The file that `use` names does not define this name: `use pipeline: onef1b`."""

    code = "E0236"
    title = "`{file}` defines no `{name}`"
    note = "{known}"
    help = "{suggestion}"
    file: str
    name: str
    suggestion: str
    known: str


@dataclass(frozen=True)
class UseCycle(Traced, Diagnostic):
    """Two files use each other, or a file uses itself."""

    code = "E0237"
    title = "`{name}` uses itself"
    help = "move what both need to a third file"
    name: str
