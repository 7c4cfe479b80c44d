"""Where numbers that are not finite come from, as one rank sees it, and as all ranks together do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .not_finite import Kind


@dataclass(frozen=True)
class Given:
    """The step was given it: `given` says which tensor has it, and where. Infinities of a batch, a buffer or a constant
    may be meant; what is trained must be finite."""

    given: str
    kind: Kind
    is_batch: bool
    is_trained: bool

    @property
    def is_wrong(self) -> bool:
        """Whether it cannot be meant."""
        return self.kind is Kind.NAN or self.is_trained


@dataclass(frozen=True)
class Made:
    """An operator made it of operands that have no such numbers. `operator` says which, and where it stands.

    `because`: the number of the origin of infinities in its operands, of which it made NaN. `at` are indices in time.
    `is_meant`: an argument of the operator is infinite, as that of a mask.
    """

    operator: str
    kind: Kind
    is_backward: bool
    at: dict[str, int]
    operands: str
    because: int | None
    is_meant: bool


@dataclass(frozen=True)
class Arrived:
    """Communication brought it from another rank, or made it as a sum; `key` is the same on all its ranks, and `by`
    says what is communicated."""

    key: str
    by: str
    kind: Kind


Origin = Given | Made | Arrived


@dataclass(frozen=True)
class Findings:
    """All origins on one rank by their numbers, and what has them: the loss, gradients of weights by name, and what
    went to other ranks by its key. `read_by`: the first operator that reads what the step was given."""

    origins: tuple[Origin, ...] = ()
    loss: int | None = None
    gradients: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    read_by: dict[int, str] = field(default_factory=dict)


class OriginOnRank(NamedTuple):
    """An origin by its rank and number."""

    rank: int
    number: int


def first_origin(findings: Sequence[Findings], start: OriginOnRank) -> OriginOnRank:
    """The origin of numbers on a rank, followed through communication to the rank that made them, or was given them.

    It stays at `Arrived` if no rank sent such numbers: then their sum is the first that is not finite.
    """
    seen = set[OriginOnRank]()
    while start not in seen:
        seen.add(start)
        origin = findings[start.rank].origins[start.number]
        if not isinstance(origin, Arrived):
            return start
        key = origin.key
        senders = (OriginOnRank(rank, found.sent[key]) for rank, found in enumerate(findings) if key in found.sent)
        start = next((sender for sender in senders if sender not in seen), start)
    return start


def start_of(findings: Sequence[Findings], *, in_loss: bool) -> tuple[OriginOnRank, str] | None:
    """The first rank's loss that is not finite, or else a gradient, with the name of its weight; None if all are
    finite. Of several gradients the one whose origin is the first of the first rank: operators on its way made them
    one after the other."""
    if in_loss:
        return next(((OriginOnRank(rank, f.loss), "") for rank, f in enumerate(findings) if f.loss is not None), None)
    starts = [(OriginOnRank(rank, n), name) for rank, f in enumerate(findings) for name, n in f.gradients.items()]
    return min(starts, key=lambda start: first_origin(findings, start[0]), default=None)


def at_text(at: Mapping[str, int]) -> str:
    """Indices in time: `, at m = 1`."""
    return f", at {', '.join(f'{name} = {number}' for name, number in at.items())}" if at else ""
