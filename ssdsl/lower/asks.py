"""Asks for values, and the answers.

An `Ask` is the need that one function has of a value. The answer, `ValueVersions`, says how each version of that value
is made, and in which function. It has no name of the value (its names are versions of "") and numbers functions from 0,
so equal values of equal layers share one answer.
"""

import dataclasses
from collections.abc import Hashable

from ssdsl.ir.comm import Move
from ssdsl.ir.function import Conversion, Merge
from ssdsl.ir.layout import Shape
from ssdsl.ir.value import Name, TimeIndex, Type, Var
from ssdsl.record import Record, field
from ssdsl.text.diagnostic import PlanError


class Need(Record):
    """The type in which an operator needs a tensor, and that of the gradient that it returns (None: no gradient)."""

    shape: Shape
    type: Type
    gradient: Type | None


class Ask(Record, eq=False):
    """The need that function number `function` has of a value. `at` is the place in the order of the program: the
    position of an operator and the number of its operand. Two asks with equal keys need the same.

    An output of the program has no need: it asks for the value as its function leaves it, with its sums taken.
    """

    value: str
    function: int
    need: Need | None
    key: Hashable
    at: tuple[int, int]


class Entering(Record):
    """A version that a function is given: a weight's, or one that the prologue provides."""

    var: Var


class SentVersions(Record):
    """The moves that bring a version to other devices, and its gradient back. `uneven` are the factors whose size
    varies with an index in time."""

    forward: Move
    backward: Move | None
    uneven: tuple[tuple[int, TimeIndex], ...]


class Received(Record):
    """A version that a function reads from another function, or from itself, which left it under the name `left`."""

    var: Var
    producer: int
    left: Name
    merges: tuple[Merge, ...]
    sent: SentVersions | None = None


What = Entering | Received | Conversion


@dataclasses.dataclass(slots=True)
class ValueVersions:
    """The versions of one value: for each, how it is `made`, by function and version number. Version 0 of function 0 is
    the operator's own result.

    `versions` holds the version that meets each ask, up to the first ask that is refused. `moves_rows` holds the
    versions that are made by moving rows to other devices: the number of the ask, and the types before and after.
    """

    made: dict[tuple[int, int], What] = dataclasses.field(default_factory=dict)
    versions: list[int] = dataclasses.field(default_factory=list)
    moves_rows: dict[tuple[int, int], tuple[int, Type, Type]] = dataclasses.field(default_factory=dict)
    refusal: PlanError | None = None


Counts = dict[tuple[int, Name], tuple[Ask, Ask]]  # for versions made by moving rows: their counts before and after


class Converted(Record):
    """The result of `convert_values`: for a value and a function the answer, and the functions that it numbers; the
    name under which each ask is met; the asks for `counts` of rows."""

    answers: dict[tuple[str, int], tuple[ValueVersions, tuple[int, ...]]] = field(default_factory=dict)
    names: dict[Ask, Name] = field(default_factory=dict)
    counts: Counts = field(default_factory=dict)
