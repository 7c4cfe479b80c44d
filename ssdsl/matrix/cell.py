"""A cell of a matrix: what became of a plan on a model, under some values of its params."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from ssdsl.lang import nodes
from ssdsl.lang.parse import parse
from ssdsl.record import Record
from ssdsl.simulate.report import Report
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Source


class CellOutcome(StrEnum):
    """What became of a plan. The last three are failures."""

    PROVED = "proved"
    VERIFIED = "verified"  # proved, and trained beside a single device
    REFUSED = "refused"
    UNCOMPARED = "not compared"  # proved, but no step has a finite loss
    WRONG = "wrong"
    CRASHED = "crashed"


class PlanText(Record, dict=True):
    """A plan by the name that tables show, with the folder where its `use` statements look."""

    name: str
    source: Source
    folder: Path | None = None

    @property
    def script(self) -> nodes.Script:
        """The syntax tree. Raises PlanError."""
        return parse(self.source)


class Worst(Record):
    """The tensor that came closest to what rounding allows, or exceeded it most. `error` is relative to its largest
    element, `of_allowed` to what is allowed; of a tensor that is rounding alone, the error says nothing and is None."""

    what: str
    name: str
    error: float | None
    of_allowed: float


class Cell(Record):
    """What became of a plan on a model.

    `work` is the share of a step's multiplications that its busiest device computes, `report` the simulated step if one
    was asked for. `reason` is the diagnostic of what is refused or wrong, `fault` the text of what crashed, or of how a
    run ended.
    """

    model: str
    plan: str
    params: Mapping[str, int]
    outcome: CellOutcome
    devices: int = 0
    is_proved: bool = False  # what is proved may still be wrong, which is a bug
    work: float | None = None
    report: Report | None = None
    worst: Worst | None = None
    reason: Diagnostic | None = None
    fault: str = ""
    warnings: tuple[Diagnostic, ...] = ()
    seconds: float = 0.0

    @property
    def words(self) -> str:
        """`T=2 M=8`."""
        return " ".join(f"{name}={value}" for name, value in self.params.items())

    @property
    def is_failure(self) -> bool:
        """Whether something is wrong: a matrix with such a cell exits with 1."""
        return self.outcome in (CellOutcome.UNCOMPARED, CellOutcome.WRONG, CellOutcome.CRASHED)
