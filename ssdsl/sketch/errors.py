"""Diagnostics of a search."""

from ssdsl.lang.suggest import joined
from ssdsl.text.diagnostic import Diagnostic


class TooManySettings(Diagnostic):
    """The open params have too many combinations: for example `--devices 1..4096` for a plan with three widths.

    A search reads the plan once under each combination, which takes milliseconds.
    """

    code = "E0283"
    title = "more than {most:,} settings of {plans} are open"
    help = "set some params, `--set {param}=2`, list in the plan what may be tried, or ask for fewer numbers of devices"
    plans: str
    most: int
    param: str


class NoPrice(Diagnostic):
    """`--by cost` ranks plans by what a step costs, and the file of the cluster says nothing of that."""

    code = "E0618"
    title = "the file of `{cluster}` has no prices"
    help = "add a table [price] with device_hour, what a device costs in an hour, and the source of that figure"
    cluster: str


class NothingOpen(Diagnostic):
    """`ssdsl search PLAN --explain LINE` shows what is known of the numbers of a param, or of the branches of an
    `either`, in that line of the plan."""

    code = "E0619"
    title = "line {line} of `{plan}` leaves no number open"
    help = "give the line of one that is: {lines}"
    plan: str
    line: int
    named: tuple[tuple[int, str], ...]

    @property
    def lines(self) -> str:
        return joined([f"{at} (`{name}`)" for at, name in self.named], "or") or "this plan has none"


class OpenInUsedFile(Diagnostic):
    """A search changes only the plan's own text. In a file that the plan uses, a `param` keeps its default whatever its
    `in` lists, and `cut(model, S)` is balanced.

    Pass the values that another file needs to its functions: `use "mine.ssp": f`, then `f(T)` with `param T = 2 in [1,
    2]` in the plan.
    """

    code = "E0285"
    severity = "warning"
    title = "`{written}` is in a file that the plan uses, which a search does not change"
    param: str = ""  # its name; empty for a call

    @property
    def written(self) -> str:
        return self.span.source.text[self.span.start : self.span.end] if self.span else ""

    @property
    def change(self) -> str:
        if self.param:
            return f"write it in the plan, and give {self.param} to the functions of the file as an argument"
        return "call it in the plan, and give its value to the functions of the file as an argument"
