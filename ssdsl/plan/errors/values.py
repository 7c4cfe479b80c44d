"""Mistakes with values: numbers, lists, and values of the wrong kind."""

from collections.abc import Callable, Sequence
from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING, TypeGuard, TypeVar

from ssdsl.lang import nodes
from ssdsl.plan.errors.traced import Traced
from ssdsl.plan.values import Devices, PlanFunction, Selection, Value, is_list, is_number, is_whole, kind_of
from ssdsl.text.diagnostic import PlanError

if TYPE_CHECKING:
    from ssdsl.plan.context import Context


class Wanted(Enum):
    """The kinds of values that a place takes: in words, and an example of what to write there."""

    OPERATORS = "a selection of operators", 'write `model`, or some of it, such as `model["h.*.mlp"]`'
    DEVICES = "devices, a mesh or a slice of one", "name a mesh, `gpus`, or a slice of one, `gpus[pp = 0]`"
    WHOLE = "a whole number", "write a number such as `4`, or the name of a `param`"
    NUMBER = "a number", "write a number such as `4`, or the name of a `param`"
    NUMBERS = "numbers", "give numbers, `min(S, M)`, or one list of them that is not empty"
    WIDTHS = "a list of numbers of devices such as [1, 2, 4]", "list numbers of devices: `[1, 2, 4]`"
    TRIED = "a list of whole numbers", "write those that are tried: `param T = 2 in [1, 2, 4]`"
    TRUTH = "a truth value such as `D > 1`", "compare it: `D > 1`, `S == 2`"
    LIST = "a list", "write `[a, b]` or a range such as `0..S`; one item is added by `list + [item]`"
    LOOP = "a list or a range such as `0..S`", "write a range, `for s in 0..S`, or a list"
    FUNCTION = "a function", "functions are defined by `def`, and come from other files by `use pipeline: gpipe`"
    SELECTIONS = "selections", "`|` and `&` combine selections; truth values are combined by `or` and `and`"
    AROUND_RANGE = "whole numbers around `..`", "divide whole numbers by `//`: `0..S // 2`"
    PICKED = "a selection, a list or a mesh in front of `[`", "write what is chosen from in front: `model[...]`"
    PATH = 'a path such as "h.*"', 'write the path of modules in quotation marks: `each("h.*")`'
    PATHS = 'a list of paths such as ["h.7", "h.15"]', "name the modules that stages begin with, in quotation marks"
    BEGIN = "a path or a selection", 'name the module that a stage begins with: `"h.3"`, or `model["h.3"]`'
    PATH_OR_INDEX = 'a path such as "h.*.mlp", or an index such as `m = 0`', "write a path in quotation marks"
    DIMENSION = 'the name of a dimension such as "heads"', 'write it in quotation marks: `size(model, "heads")`'
    POSITION = "a whole number, the position in a list", "positions begin at 0: `stage[0]`"
    PART = "a whole number, `none` or `any`", "`[m = 0]` is part 0; `[m = any]`: all that have the index `m`"
    PARTS = "a number of parts or a list of sizes", "write `into m = 4`, or sizes: `into m = [3, 5]`"
    PORTIONS = "a list of whole numbers", "give each device of the axis its portion: `into dp = [3, 3, 2]`"
    STAGES = "a number of stages or a list of their shares", "write `balance(model, 4)`, or `balance(model, [2, 1, 1])`"
    SHARE = (
        "a number, a stage's share of the work",
        "write numbers: in `[2, 1, 1]` the first stage has half",
    )
    CHUNKS = "a list of lists of chunks", "say which chunks each part has: `into cp parts [[0, 3], [1, 2]]`"
    OF_PART = "a list of numbers, the chunks of a part", "list the chunks of this part: `[0, 3]`"
    TIME = "a number, the nominal time", "write a number behind `at`, such as `2 * m + s`"

    def __init__(self, words: str, example: str) -> None:
        self.words = words
        self.example = example


ITEMS = {  # what is wanted of each item of a list
    Wanted.NUMBERS: Wanted.WHOLE,
    Wanted.PORTIONS: Wanted.WHOLE,
    Wanted.WIDTHS: Wanted.WHOLE,
    Wanted.TRIED: Wanted.WHOLE,
    Wanted.PARTS: Wanted.WHOLE,
    Wanted.PATHS: Wanted.BEGIN,
    Wanted.CHUNKS: Wanted.OF_PART,
    Wanted.OF_PART: Wanted.WHOLE,
}


class WrongType(Traced):
    """A value of one kind stands where another is needed: `split 3 by batch into dp`."""

    code = "E0210"
    title = "expected {wanted.words}, found {found}"
    wanted: Wanted
    value: Value

    @property
    def found(self) -> str:
        return kind_of(self.value)

    @property
    def change(self) -> str:
        """The advice: for some pairs of wanted and found kinds, that for the mistake behind it; else an example."""
        value, wanted = self.value, self.wanted
        if isinstance(value, PlanFunction) and wanted is not Wanted.FUNCTION:
            return f"call it: `{value.name}({', '.join(value.formals)})`"
        if wanted is Wanted.NUMBER and isinstance(value, str):
            return 'paths are not computed: `each("h.*")` lists the modules that match'
        if wanted in (Wanted.NUMBER, Wanted.TRUTH) and isinstance(value, Selection):
            return "selections are combined with `|`, `&` and `-`"
        if wanted is Wanted.OPERATORS and isinstance(value, str):
            return f'write `model["{value}"]`' if "`" not in value else wanted.example
        if wanted is Wanted.OPERATORS and is_list(value) and value and isinstance(value[0], Selection):
            one = "choose one of the list's selections: `stage[0]`, or `stage[s]` in a loop `for s in 0..S`"
            return f"{one}; or unite them: `stage[0] | stage[1]`"
        if wanted is Wanted.DEVICES and is_list(value) and value and isinstance(value[0], Devices):
            return "choose one of the list's meshes: `gpus[0]`, or `gpus[s]` in a loop `for s in 0..S`"
        if wanted is Wanted.LOOP and is_whole(value):
            return f"write a range: `0..{value}`"
        if wanted is Wanted.PATH_OR_INDEX and is_whole(value):
            return f'name the index: `[m = {value}]`; modules are chosen by a path in quotation marks: `["h.{value}"]`'
        if wanted in (Wanted.WHOLE, Wanted.POSITION, Wanted.PART) and isinstance(value, Fraction) and is_number(value):
            return "divide whole numbers by `//`, which gives a whole number"
        return wanted.example


T = TypeVar("T")
Kind = Callable[[Value], TypeGuard[T]]  # such as `is_whole`


def required(value: Value, kind: Kind[T], at: nodes.Node, wanted: Wanted) -> T:
    """The value; raises PlanError if it is not of this kind. `at` is the place of the mistake."""
    if kind(value):
        return value
    raise PlanError(WrongType(at.span, wanted, value))


def items_of(
    ctx: "Context", value: Value, kind: Kind[T], at: nodes.Node, wanted: Wanted, least: int = 1
) -> tuple[T, ...]:
    """The items of a list; raises PlanError if it is no list of at least so many items, all of this kind. The place is
    that of the wrong item, if the list is written out."""
    given = required(value, is_list, at, wanted)
    ctx.budget.spend(at, len(given))  # a range may have more than fit into memory
    if len(given) < least:
        raise PlanError(WrongType(at.span, wanted, value))
    found: list[T] = []
    for item, place in zip(given, places_of(at, len(given)), strict=True):
        if not kind(item):
            raise PlanError(
                WrongType(at.span, wanted, value) if place is at else WrongType(place.span, ITEMS[wanted], item)
            )
        found.append(item)
    return tuple(found)


Place = TypeVar("Place", bound=nodes.Node)


def places_of(e: Place, count: int) -> Sequence[Place | nodes.Expr]:
    """The expression of each of so many items of a list; that of the list itself, if it does not show them."""
    match e:
        case nodes.ListOf(items):
            return items
        case nodes.Comprehension(item):
            return (item,) * count
        case nodes.Binary("+", nodes.ListOf(items), right):
            return (*items, *places_of(right, count - len(items)))
        case nodes.Binary("+", left, nodes.ListOf(items)):
            return (*places_of(left, count - len(items)), *items)
        case _:
            return (e,) * count


class NoSuchItem(Traced):
    """A list has no item at this position; positions begin at 0: `stage[S]` of S stages."""

    code = "E0211"
    title = "there is no item {position} in a list of {length}"
    position: int
    length: int

    @property
    def change(self) -> str:
        return f"its items are 0 to {self.length - 1}" if self.length else "the list is empty: leave the item out"


class DivisionByZero(Traced):
    """`//` and `%` by zero."""

    code = "E0212"
    title = "division by zero"
    help = "divide by a number that is not 0; `a // b if b > 0 else 0` asks first"


class NumberTooLarge(Traced):
    """A number beyond 2^62. No count in a plan is that large."""

    code = "E0213"
    title = "this number is too large"
    help = "keep numbers below 2^62"


class NoSuchAttribute(Traced):
    """Only a selection can be followed by a dot: `model.fwd`, `model.weights`, `model.linear`."""

    code = "E0214"
    title = "{found} has no `.{name}`"
    value: Value
    name: str

    @property
    def found(self) -> str:
        return kind_of(self.value)

    @property
    def change(self) -> str:
        if is_list(self.value) and self.value and isinstance(self.value[0], Selection):
            return f"choose one of the list's selections: `stage[0].{self.name}`"
        return f"write a selection in front of the dot: `model.{self.name}`"
