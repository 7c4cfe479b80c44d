"""Diagnostics of a search."""

from dataclasses import dataclass

from ssdsl.text.diagnostic import Diagnostic


@dataclass(frozen=True)
class TooManySettings(Diagnostic):
    """Every number of each open param with every one of the others: `--devices 1..4096` for a plan of three widths.

    A search reads the plan under each of them once, which takes milliseconds.
    """

    code = "E0283"
    title = "more than {most:,} settings of {plans} are open"
    help = "set some params, `--set {param}=2`, list in the plan what may be tried, or ask for fewer numbers of devices"
    plans: str
    most: int
    param: str
