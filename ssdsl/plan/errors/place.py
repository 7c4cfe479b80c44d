"""Mistakes of `mesh`, `assign` and `order`."""

from dataclasses import dataclass

from ssdsl.plan.errors.traced import Traced
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Span


@dataclass(frozen=True)
class NoMesh(Traced, Diagnostic):
    """A plan without a `mesh` has no devices to put operators on."""

    code = "E0250"
    title = "the plan has no mesh"
    help = "declare the devices: `mesh gpus(dp = 2)`, and `assign model to gpus`"


@dataclass(frozen=True)
class BadMesh(Traced, Diagnostic):
    """The axes of a mesh have whole sizes of at least 1, distinct names, and not too many devices together."""

    code = "E0251"
    title = "{reason}"
    help = "{help_text}"
    reason: str
    help_text: str


@dataclass(frozen=True)
class NotAssigned(Traced, Diagnostic):
    """Every operator that computes with weights must be put on devices by an `assign`."""

    code = "E0252"
    title = "{count} operators are assigned to no devices"
    note = "{where}"
    help = "assign them, for instance `assign {example} to {mesh}`"
    count: int
    where: str
    example: str
    mesh: str


@dataclass(frozen=True)
class AssignedTwice(Traced, Diagnostic):
    """Two `assign` put one operator on different devices."""

    code = "E0253"
    title = "`{operator}` is already assigned to `{before}`"
    note = "{more}"
    help = "leave it out of one: `assign (A - B) to ...`"
    operator: str
    before: str
    more: str
    first: Span | None

    def others(self) -> tuple[tuple[Span, str], ...]:
        first = ((self.first, "assigned here first"),) if self.first else ()
        return (*first, *super().others())


@dataclass(frozen=True)
class NoSuchAxis(Traced, Diagnostic):
    """A slice names an axis that the mesh does not have: `gpus[pipe = 0]`."""

    code = "E0254"
    title = "the mesh `{mesh}` has no axis `{axis}`"
    note = "{known}"
    help = "{suggestion}"
    mesh: str
    axis: str
    suggestion: str
    known: str


@dataclass(frozen=True)
class NoSuchDevice(Traced, Diagnostic):
    """A slice names a coordinate beyond the size of the axis: `gpus[pp = 2]` where `pp` has 2 devices, 0 and 1."""

    code = "E0255"
    title = "the axis `{axis}` of `{mesh}` has no coordinate {coordinate}"
    note = "`{axis}` has the coordinates 0 to {last}"
    help = "`{axis} = s % {size}` begins again at 0"
    axis: str
    mesh: str
    coordinate: int
    size: int
    last: int


@dataclass(frozen=True)
class SplitAndFixed(Traced, Diagnostic):
    """An operator is split into an index whose axis its devices fix: its parts would have to be all at one coordinate.

    Split into `pp`, it lies on all devices along `pp`; assigned to `gpus[pp = 0]`, on the first only.
    """

    code = "E0256"
    title = "`{operator}` is split into `{name}`, and its devices fix `{name}`"
    label = "assigned here"
    help = "assign it to the whole mesh, or name the index otherwise"
    operator: str
    name: str
    first: Span | None

    def others(self) -> tuple[tuple[Span, str], ...]:
        first = ((self.first, "split here"),) if self.first else ()
        return (*first, *super().others())


@dataclass(frozen=True)
class RelatesNothing(Traced, Diagnostic):
    """An `order` that relates no two tasks: all its indices are out of range, or it names only data operators."""

    code = "E0257"
    severity = "warning"
    title = "this order relates nothing"
    note = "an index outside of its range names no task"
    help = "remove it, or look at its indices"


@dataclass(frozen=True)
class NoSuchOrder(Traced, Diagnostic):
    """`order by` sorts by a clock, the one thing that there is to sort by: each row says `TASKS at TIME`."""

    code = "E0258"
    title = "tasks cannot be ordered by `{by}`"
    help = "write `order by clock:`, and below it rows such as `stage[s].fwd[m = m] at 2 * m`"
    by: str
