"""Mistakes of `split`, `dim` and `recompute`."""

from dataclasses import dataclass

from ssdsl.plan.errors.traced import Traced
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Span


@dataclass(frozen=True)
class DoesNotDivide(Traced, Diagnostic):
    """A dimension is cut into equal parts, so its size must be a multiple of their number.

    `split model by heads into tp` with 12 heads and `tp = 8` does not go. Sizes may be given: `into m = [3, 5]`.
    """

    code = "E0203"
    title = "cannot split `{dim}` into {count} equal parts"
    label = "{origin}"
    note = "{where}"
    help = "{choices}"
    dim: str
    count: int
    origin: str
    where: str
    choices: str


@dataclass(frozen=True)
class NoSuchDimension(Traced, Diagnostic):
    """No selected operator has a dimension of this name: `split model by head into tp`.

    `ssdsl show PLAN --model gpt dims` lists the dimensions.
    """

    code = "E0204"
    title = "no operator selected here has a dimension `{dim}`"
    note = "{known}"
    help = "{suggestion}"
    dim: str
    suggestion: str
    known: str


@dataclass(frozen=True)
class Contradiction(Traced, Diagnostic):
    """Two statements say different things of one operator's index.

    An index is added once: two splits into `tp` must cut the same dimension into as many parts.
    """

    code = "E0205"
    title = "`{operator}` already has an index `{name}`"
    label = "{now}"
    help = "choose another index, or leave these operators out: `model[{name} = none]`"
    operator: str
    name: str
    now: str
    before: str
    first: Span | None

    def others(self) -> tuple[tuple[Span, str], ...]:
        first = ((self.first, self.before),) if self.first else ()
        return (*first, *super().others())


@dataclass(frozen=True)
class CannotSplit(Traced, Diagnostic):
    """An operator cannot be cut along this dimension: a softmax needs all of what it normalises over."""

    code = "E0206"
    title = "cannot split {kind} by `{dim}`: {reason}"
    note = "{where}"
    help = "leave these operators out: `split OPERATORS - model.{kind_name} by {dim} ...`"
    kind: str
    dim: str
    reason: str
    where: str
    kind_name: str


@dataclass(frozen=True)
class UnknownCount(Traced, Diagnostic):
    """Into how many parts? A bare index takes its number of parts from the mesh axis of the same name."""

    code = "E0207"
    title = "into how many parts is `{name}` cut?"
    label = "{reason}"
    help = "{suggestion}\nsay how many: `into {name} = 4`"
    name: str
    reason: str
    suggestion: str


@dataclass(frozen=True)
class CountMismatch(Traced, Diagnostic):
    """An index and the mesh axis of its name meet, so they must have the same size."""

    code = "E0208"
    title = "`{name}` has {count} parts, and the axis `{name}` of `{mesh}` has {size} devices"
    label = "{count} parts"
    note = "{where}"
    help = "leave the number out: `into {name}` takes it from the mesh; or name the index otherwise"
    name: str
    count: int
    mesh: str
    size: int
    where: str
    first: Span | None

    def others(self) -> tuple[tuple[Span, str], ...]:
        first = ((self.first, f"{self.size} devices along `{self.name}`"),) if self.first else ()
        return (*first, *super().others())


@dataclass(frozen=True)
class BadSizes(Traced, Diagnostic):
    """The sizes of the parts must add up to the size of the dimension: `into m = [3, 5]` needs 8."""

    code = "E0209"
    title = "the parts' sizes add up to {total}, but `{dim}` has {size}"
    note = "{where}"
    total: int
    dim: str
    size: int
    where: str


@dataclass(frozen=True)
class BadCount(Traced, Diagnostic):
    """A number of parts is at least 1."""

    code = "E0215"
    title = "cannot cut into {count} parts"
    help = "give at least 1"
    count: int


@dataclass(frozen=True)
class UnequalOnAxis(Traced, Diagnostic):
    """Parts of unequal sizes run one after another; across devices all parts are of one size."""

    code = "E0216"
    title = "the parts of `{name}` are unequal, and `{name}` is an axis of `{mesh}`"
    help = "give equal sizes, or name the index otherwise, so that its parts run one after another"
    name: str
    mesh: str


@dataclass(frozen=True)
class OnlyByRow(Traced, Diagnostic):
    """State is sharded by rows: `split model.weights by row into dp`. Rows need not be even."""

    code = "E0217"
    title = "{state} are split by `row`"
    label = "not by `{dim}`"
    help = "write `by row`"
    state: str
    dim: str


@dataclass(frozen=True)
class StateOverAxis(Traced, Diagnostic):
    """State is sharded over devices, so the index is an axis of a mesh: `split model.weights by row into dp`."""

    code = "E0218"
    title = "state is split over the axes of a mesh"
    label = "`{name}` {reason}"
    help = "{suggestion}"
    name: str
    suggestion: str
    reason: str


@dataclass(frozen=True)
class ShardedTwice(Traced, Diagnostic):
    """The same state of a weight is sharded in two ways."""

    code = "E0219"
    title = "the {state} of `{weight}` are already split over other axes"
    help = "remove one"
    state: str
    weight: str
    first: Span | None

    def others(self) -> tuple[tuple[Span, str], ...]:
        first = ((self.first, "split here first"),) if self.first else ()
        return (*first, *super().others())


@dataclass(frozen=True)
class NoDimension(Traced, Diagnostic):
    """`dim NAME = OPS.name` gives the dimension `name` of these operators a further name.

    For instance `dim tokens = model.linear.seq`, and then `split model by tokens into sp`.
    """

    code = "E0220"
    title = "`dim` names a dimension of operators"
    help = "write `dim name = OPERATORS.dimension`"


@dataclass(frozen=True)
class RecomputedTwice(Traced, Diagnostic):
    """An operator belongs to two different checkpoints. Each operator is recomputed by one."""

    code = "E0221"
    title = "`{operator}` is already recomputed with other operators"
    help = "remove one"
    operator: str
    first: Span | None

    def others(self) -> tuple[tuple[Span, str], ...]:
        first = ((self.first, "recomputed here first"),) if self.first else ()
        return (*first, *super().others())
