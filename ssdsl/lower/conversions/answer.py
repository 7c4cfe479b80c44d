"""What is asked of values, and what becomes of one: how each version of it is made, in which function.

An answer is without the value's name and by local numbers of functions, so that equal values of equal layers have the
same one: its names are versions of "".
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

from ssdsl.ir.comm import Move
from ssdsl.ir.function import Conversion, Merge
from ssdsl.ir.layout import Shape
from ssdsl.ir.value import Name, TimeIndex, Type, Var
from ssdsl.text.diagnostic import PlanError


@dataclass(frozen=True, slots=True)
class Need:
    """What an operator needs of a tensor, and the type of the gradient that it hands back (None: it hands none)."""

    shape: Shape
    type: Type
    gradient: Type | None


@dataclass(slots=True, eq=False)
class Ask:
    """A need of function number `function`, at a place in the order of the program: of an operator and an operand. Two
    with equal keys need the same. Without a need, a report asks for a value as it is left, its sums taken."""

    value: str
    function: int
    need: Need | None
    key: Hashable
    at: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Entering:
    """A version that a function is given: a weight's, or one that the prologue provides."""

    var: Var


@dataclass(frozen=True, slots=True)
class Sent:
    """How a version goes to other devices, and its gradient back."""

    forward: Move
    backward: Move | None
    uneven: tuple[tuple[int, TimeIndex], ...]


@dataclass(frozen=True, slots=True)
class Received:
    """A version that a function reads of another one, or of itself, which left it under the name `left`."""

    var: Var
    producer: int
    left: Name
    merges: tuple[Merge, ...]
    sent: Sent | None = None


What = Entering | Received | Conversion


@dataclass(slots=True)
class Answer:
    """How each version is `made`, by its function and number; what an operator leaves is version 0 of function 0.

    `versions` has for each ask the version that meets it, up to one that is refused. `moves_rows` has those versions
    that are made by moving rows to other devices: the number of the ask, the types before and after.
    """

    made: dict[tuple[int, int], What] = field(default_factory=dict)
    versions: list[int] = field(default_factory=list)
    moves_rows: dict[tuple[int, int], tuple[int, Type, Type]] = field(default_factory=dict)
    refusal: PlanError | None = None


Counts = dict[tuple[int, Name], tuple[Ask, Ask]]  # of versions made by moving rows: who asks how many before and after


@dataclass(frozen=True, slots=True)
class Converted:
    """What became of the values: for a value and a function the answer, and the functions that it numbers; the name
    under which each ask is met; who asks for `counts`."""

    answers: dict[tuple[str, int], tuple[Answer, tuple[int, ...]]] = field(default_factory=dict)
    names: dict[Ask, Name] = field(default_factory=dict)
    counts: Counts = field(default_factory=dict)
