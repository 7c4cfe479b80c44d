"""What expressions evaluate to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ssdsl.lang import nodes
from ssdsl.plan.plan import Phase, State

if TYPE_CHECKING:
    from ssdsl.plan.eval.scope import Scope


class Marker(StrEnum):
    """`[tp = none]` selects the operators without that index, `[tp = any]` those with it."""

    NONE = "none"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Selection:
    """Operators, and in `order` which of their tasks: fixed indices and a phase.

    `units` are the parts it was selected by, one per module that a path matched; empty if it was not.
    """

    operators: frozenset[str]
    units: tuple[frozenset[str], ...] = field(default=(), compare=False)
    fixed: tuple[tuple[str, int], ...] = ()
    phase: Phase | None = None


@dataclass(frozen=True, slots=True)
class StateOf:
    """The weights that these operators read, their gradients or their optimizer state."""

    operators: frozenset[str]
    state: State


@dataclass(frozen=True, slots=True)
class Devices:
    """A mesh, or a slice of it."""

    mesh: str
    fixed: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A `def`, or a `let` with arguments, and the scope it was defined in."""

    node: nodes.Def | nodes.Let
    scope: "Scope"

    @property
    def name(self) -> str:
        return self.node.name.text

    @property
    def formals(self) -> tuple[str, ...]:
        return tuple(word.text for word in self.node.formals or ())


@dataclass(frozen=True, slots=True, eq=False)
class Builtin:
    """A function of the language itself; it is given its arguments and their nodes."""

    name: str
    takes: str
    least: int
    most: int
    function: Callable[..., Any]


Value = (
    int | Fraction | bool | str | tuple[Any, ...] | range | Marker | Selection | StateOf | Devices | Function | Builtin
)

KINDS: tuple[tuple[type[Any] | tuple[type[Any], ...], str], ...] = (
    (bool, "a truth value"),
    (int, "a number"),
    (Fraction, "a fraction"),
    (Marker, "`none` or `any`"),
    (str, "a string"),
    ((tuple, range), "a list"),
    (Selection, "a selection of operators"),
    (StateOf, "the state of operators"),
    (Devices, "devices"),
    ((Function, Builtin), "a function"),
)


def kind_of(value: Any) -> str:
    """What a value is, in words."""
    return next((words for kind, words in KINDS if isinstance(value, kind)), "nothing")


def is_number(value: Any) -> bool:
    return type(value) is int
