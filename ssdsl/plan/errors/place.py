"""Mistakes about devices and order that no one statement makes alone."""

import re
from enum import Enum

from ssdsl.lang.suggest import joined, listed, nearest, suggest
from ssdsl.model.graph import ROOT
from ssdsl.plan.errors.traced import Conflict, Traced
from ssdsl.plan.plan import PartRun
from ssdsl.text.edits import TextEdit
from ssdsl.text.source import Source

MOST = 6  # modules that a note names


class NoMesh(Traced):
    """A plan without a `mesh` has no devices to put operators on."""

    code = "E0250"
    title = "the plan has no mesh"
    help = "declare the devices: `mesh gpus(dp = 2)`, and `assign model to gpus`"


class NotAssigned(Traced):
    """An `assign` must put every operator that computes with weights on devices."""

    code = "E0252"
    title = "{count} operators are assigned to no devices"
    note = "{where}"
    help = "assign them, for instance `assign {example} to {mesh}{turns}`"
    count: int
    modules: tuple[str, ...]  # where they are
    missing: str | None  # a module that none of the plan's statements assigns; None if the whole model is not
    mesh: str
    parts: tuple[PartRun, ...] = ()  # of that module
    plan: Source | None = None

    @property
    def where(self) -> str:
        return f"{'they are' if self.count > 1 else 'it is'} in {listed(self.modules)}"

    @property
    def example(self) -> str:
        module = "model" if self.missing is None else f'model["{self.missing}"]'
        return module + "".join(f"[{run.index} = {run.first if run.count == 1 else run.index}]" for run in self.parts)

    @property
    def turns(self) -> str:
        several = [f"{run.index} in {run.first}..{run.end}" for run in self.parts if run.count > 1]
        return f" for {', '.join(several)}" if several else ""

    def edits(self) -> tuple[TextEdit, ...]:
        if self.plan is None:
            return ()
        lines = [f"assign {self.example} to {self.mesh}{self.turns}"]
        if self.missing is not None and not self.parts:
            lines = [f'assign model["{module}"] to {self.mesh}' for module in self.modules]
        return (TextEdit.at_end(self.plan, "\n".join(lines)),)


class PlacedBeside(Traced):
    """Operators that no statement assigns were put beside those that make their operands, or that use their results.

    A module that contains other modules calls such operators itself: a residual, an activation, the division of a loss.
    Their path is `.` for the model, and the module's path with a dot at the end for a module: `model["."]`,
    `model["h.0."]`.
    """

    code = "E0380"
    severity = "warning"
    title = "{what} neighbours, as no statement assigns them"
    note = "{kinds} in the forward of {modules}"
    help = 'to place them yourself: `assign model["{first}"] to {devices}`'
    count: int
    paths: tuple[str, ...]
    names: tuple[str, ...]
    first: str  # the path of some of them
    devices: str
    plan: Source | None = None

    @property
    def what(self) -> str:
        return f"{self.count} operators are put beside their" if self.count > 1 else "1 operator is put beside its"

    def edits(self) -> tuple[TextEdit, ...]:
        if self.plan is None:
            return ()
        return (TextEdit.at_end(self.plan, f'assign model["{self.first}"] to {self.devices}'),)

    @property
    def kinds(self) -> str:
        return listed(self.names)

    @property
    def modules(self) -> str:
        return joined(["the model itself" if path == ROOT else f"`{path}`" for path in self.paths[:MOST]], "and")


class RoundTrip(Traced):
    """Operators that a module calls itself are on other devices than all their neighbours, so values go there and back.

    `model - model["h.*"]` also selects the residuals, activations and sums that modules with submodules call
    themselves. If all their operands are made, and all their results read, on other devices, each value crosses twice,
    forward and backward.
    """

    code = "E0281"
    severity = "warning"
    title = "{what} on `{there}` between operators on `{here}`"
    label = "puts `{first}` on `{there}`"
    note = "{where}; each value goes to the other devices and back"
    help = """{change}
each of these operators then runs where its operands are made"""
    kinds: tuple[str, ...]
    there: str
    here: str
    path: str
    own: str  # the path of what the module calls itself
    source: str  # the line of the first of them
    is_all: bool  # the statement assigns nothing else

    @property
    def first(self) -> str:
        return self.kinds[0]

    @property
    def change(self) -> str:
        if self.is_all:
            return "leave the statement out: it assigns only operators that this module calls outside its submodules"
        return f'leave out the operators that this module calls outside its submodules: append `- model["{self.own}"]`'

    @property
    def what(self) -> str:
        return f"{listed(dict.fromkeys(self.kinds))} {'runs' if len(self.kinds) == 1 else 'run'}"

    @property
    def where(self) -> str:
        return f"in the forward of {'the model itself' if self.path == ROOT else f'`{self.path}`'} ({self.source})"


class NoSuchAxis(Traced):
    """A slice names an axis that the mesh does not have: `gpus[pipe = 0]`."""

    code = "E0254"
    title = "the mesh `{mesh}` has no axis `{axis}`"
    note = "its axes are {has}"
    mesh: str
    axis: str
    known: tuple[str, ...]

    @property
    def has(self) -> str:
        return listed(self.known)

    @property
    def change(self) -> str:
        return suggest(self.axis, self.known) or f"choose one of its axes: `{self.mesh}[{self.known[0]} = 0]`"

    @property
    def instead(self) -> tuple[str, ...]:
        return nearest(self.axis, self.known)


class NoSuchDevice(Traced):
    """A slice names a coordinate that the axis does not have: `gpus[pp = 2]` where `pp` has 2 devices, 0 and 1.

    Coordinates count from 0, and none is negative. `s % 2` is 0 or 1 for each whole number `s`: 2 becomes 0, and -1
    becomes 1.
    """

    code = "E0255"
    title = "the axis `{axis}` of `{mesh}` has no coordinate {coordinate}"
    note = "`{axis}` has {has}"
    help = "choose one that it has; `{axis} = s % {size}` wraps {coordinate} around to {wrapped}"
    axis: str
    mesh: str
    coordinate: int
    size: int

    @property
    def has(self) -> str:
        return f"the coordinates 0 to {self.size - 1}" if self.size > 1 else "the coordinate 0 alone"

    @property
    def wrapped(self) -> int:
        return self.coordinate % self.size


class SplitAndFixed(Conflict):
    """An operator is split into an index, and its devices fix the axis of that name: all parts would be at one
    coordinate.

    Split into `pp`, it lies on all devices along `pp`; assigned to `gpus[pp = 0]`, on the first only.
    """

    code = "E0256"
    title = "`{operator}` is split into `{name}`, and its devices fix `{name}`"
    label = "assigned here"
    help = "assign it to the whole mesh, or rename the index"
    earlier = "split here"
    operator: str
    name: str


class NothingAgain(Traced):
    """An order names the second forward, `.again`, of operators that are not recomputed: they run forward once.

    `recompute OPS` has them run again; without an order they do so within backward, or right before.
    """

    code = "E0259"
    title = "`{operator}` is not recomputed, so it does not run again"
    help = "write `recompute {words}`, too"
    operator: str
    words: str

    def edits(self) -> tuple[TextEdit, ...]:
        return () if self.span is None else (TextEdit.at_end(self.span.source, f"recompute {self.words}"),)


class RelatesNothing(Traced):
    """An `order`, or a row of `order by clock`, has no effect in any turn of its loop.

    An index outside its range names no task; schedules begin and end with such turns, but some turn should name one.
    Operators without a phase have no task in it either: there is no `.wgrad` without weights, and no `.bwd` where
    nothing is trained. Nor does an `order` relate a task to itself.
    """

    code = "E0257"
    severity = "warning"
    title = "{what}"
    note = (
        "there is no task outside of an index's range, no `.wgrad` without weights, no `.bwd` where nothing is trained"
    )
    help = "remove it, or correct its indices or phases"
    is_row: bool = False  # of `order by clock`

    @property
    def what(self) -> str:
        return "this row names no task" if self.is_row else "`order` matches no pair of tasks"


class Idle(Enum):
    """The reasons why a statement changes nothing in the program, each with what to do."""

    EMPTY = (
        "it selects no operators of these items",
        "remove it, or select operators that some of the items have",
    )
    UNPLACED = (
        "these operators read inputs alone, and run wherever their results are needed",
        "remove it, or select operators that depend on weights",
    )
    WHOLE = (
        "its operators run once, on all of these parts together",
        "remove it, or split operators that can run in parts",
    )
    KEPT = ("backward keeps nothing of these operators", "remove it, or select operators that need a gradient")
    GATHERED = (
        "backward keeps no gathered operand of these operators that it could gather again",
        "remove it: what a recomputed region, a backward in halves or another operator keeps is not gathered again",
    )
    RECEIVED = (
        "these operators receive nothing from other devices",
        "remove it, or select operators that read what other devices compute: the first ones of a stage",
    )
    ALONE = (
        "no device reduces these gradients with others",
        "remove it, or select operators that are split over devices",
    )
    AHEAD = (
        "nothing that these weights are in is gathered before it is read: they are whole, or nothing else is in parts",
        "remove it, or `split OPS.weights by row into` an axis",
    )
    NOT_KEPT = (
        "backward keeps nothing of these operators: they need no gradient, or are recomputed",
        "remove it, or select operators that need a gradient and are not recomputed",
    )
    NOT_GATHERED = (
        "none of these weights is gathered: they are whole, or in these parts already",
        "remove it, or `split OPS.weights by row into` an axis",
    )
    HOMELESS = (
        "none of these weights lies on several devices along these axes",
        "remove it, or name an axis along which they are copied or cut",
    )
    LESS = (
        "other operators of the same task are prefetched by more, and share their buffers with these",
        "remove it, or give the others the same number",
    )

    @property
    def why(self) -> str:
        return self.value[0]

    @property
    def change(self) -> str:
        return self.value[1]


class Unread(Traced):
    """A statement that changes nothing: the program is the same without it.

    It asks for something that its operators do not have. Statements that agree with what holds anyway get no warning:
    one that repeats another statement, `where possible` that finds nothing, an index with one part.
    """

    code = "E0271"
    severity = "warning"
    title = "this `{statement}` changes nothing"
    label = "{idle.why}"
    help = "{idle.change}"
    statement: str
    idle: Idle


class OnAllDevices(Traced):
    """An `order` fixes an index whose parts are on different devices: `stage[0].fwd[dp = 0]`.

    All devices of a stage run the same tasks in the same order, so it holds for all parts along such an index. It can
    choose among parts that run one after another, as micro-batches do.
    """

    code = "E0274"
    severity = "warning"
    title = "`{index}` is an axis of `{mesh}`: the `order` holds for all its parts, not for one"
    help = "leave `{index}` out of the brackets"
    index: str
    mesh: str

    @property
    def instead(self) -> tuple[str, ...]:
        own = "" if self.span is None else self.span.text
        without = re.sub(rf"\b{self.index} = [^,\]]*(?:, *)?", "", own)
        return (without.replace("[]", ""),)
