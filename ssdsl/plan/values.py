"""`Value`: the types that expressions evaluate to."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias, TypeGuard, TypeVar

from ssdsl.lang import nodes
from ssdsl.plan.plan import Phase, State
from ssdsl.record import Record, replace

if TYPE_CHECKING:
    from ssdsl.plan.context import Context
    from ssdsl.plan.eval.scope import Scope


class Marker(StrEnum):
    """`[tp = none]` selects the operators without that index, `[tp = any]` those with it."""

    NONE = "none"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Selection:
    """Operators, and for `order` also fixed indices and a phase, which choose among their tasks.

    `units` are the groups that it was selected by: one per module that a path matched; empty if no path selected it.
    What is selected `of_items` of a list, such as the stages of a pipeline, may have no operators: statements then say
    nothing about it.
    """

    operators: frozenset[str]
    units: tuple[frozenset[str], ...] = field(default=(), compare=False)
    fixed: tuple[tuple[str, int], ...] = ()
    phase: Phase | None = None
    of_items: bool = field(default=False, compare=False)

    def within(self, operators: frozenset[str]) -> "Selection":
        """The selection, limited to these operators."""
        units = tuple(kept for unit in self.units if (kept := unit & operators))
        return replace(self, operators=operators, units=units)


class StateOf(Record):
    """The weights that these operators read, their gradients or their optimizer state."""

    operators: frozenset[str]
    state: State
    of_items: bool = False


class GathersOf(Record):
    """The values that these operators read and that are gathered for them."""

    operators: frozenset[str]


class ActivationsOf(Record):
    """What backward keeps of these operators."""

    operators: frozenset[str]
    of_items: bool = False


class Devices(Record):
    """A mesh, or a slice of it."""

    mesh: str
    fixed: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class PlanFunction(ABC):
    """A function of a plan and the scope in which it was defined. Subclasses, one for each defining statement, run
    it."""

    node: nodes.DefStatement | nodes.LetStatement
    scope: "Scope"

    @abstractmethod
    def result(self, ctx: "Context") -> "Value":
        """The value of a call; the scope of the context has the arguments."""

    @property
    def name(self) -> str:
        return self.node.name.text

    @property
    def formals(self) -> tuple[str, ...]:
        return tuple(word.text for word in self.node.formals or ())


@dataclass(frozen=True, slots=True, eq=False)
class Builtin:
    """A function of the language itself. It gets the call (for its span), `least` to `most` arguments, and those of
    `keys` that the call names."""

    name: str
    takes: str
    least: int
    most: int
    function: "Callable[..., Value]"
    keys: frozenset[str] = frozenset()


Number: TypeAlias = int | Fraction
Plain: TypeAlias = (
    Number
    | bool
    | str
    | range
    | Marker
    | Selection
    | StateOf
    | GathersOf
    | ActivationsOf
    | Devices
    | PlanFunction
    | Builtin
)
Value: TypeAlias = "Plain | tuple[Value, ...] | None"  # None is the result of a function without `return`

KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "a truth value"),
    (int, "a number"),
    (Fraction, "a fraction"),
    (Marker, "`none` or `any`"),
    (str, "a string"),
    ((tuple, range), "a list"),
    (Selection, "a selection of operators"),
    (StateOf, "the state of operators"),
    (GathersOf, "what operators gather"),
    (ActivationsOf, "what backward keeps of operators"),
    (Devices, "devices"),
    ((PlanFunction, Builtin), "a function"),
)


def kind_of(value: Value) -> str:
    """The kind of a value, in words."""
    if value == ():
        return "an empty list"
    return next((words for kind, words in KINDS if isinstance(value, kind)), "nothing")


T = TypeVar("T")


def _is_a(kind: type[T]) -> "Callable[[Value], TypeGuard[T]]":
    """The test whether a value is of a type."""

    def test(value: Value) -> TypeGuard[T]:
        return isinstance(value, kind)

    return test


is_selection, is_devices, is_text, is_truth = _is_a(Selection), _is_a(Devices), _is_a(str), _is_a(bool)


def is_whole(value: Value) -> TypeGuard[int]:
    """Whether it is a whole number; `true` is none."""
    return type(value) is int


def is_number(value: Value) -> TypeGuard[Number]:
    """Whether it is a whole number or a fraction; `true` is none."""
    return type(value) is int or isinstance(value, Fraction)


def item(value: Value) -> Value:
    """A value as an item of a list."""
    return value if not isinstance(value, Selection) or value.of_items else replace(value, of_items=True)


def is_list(value: Value) -> "TypeGuard[tuple[Value, ...] | range]":
    """Whether it has items: a range is the list of its numbers."""
    return isinstance(value, tuple | range)
