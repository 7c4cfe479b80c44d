"""The syntax of a plan as values. Spans tell where a node stands and do not count when two nodes are compared."""

from dataclasses import dataclass, field

from ssdsl.text.source import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Word(Node):
    """A name where it is introduced or looked up by the statement itself."""

    text: str


# ---- expressions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Name(Node):
    text: str


@dataclass(frozen=True, slots=True)
class Number(Node):
    """A whole or decimal number, as it is written."""

    text: str


@dataclass(frozen=True, slots=True)
class Text(Node):
    value: str


@dataclass(frozen=True, slots=True)
class ListOf(Node):
    items: tuple["Expr", ...]


@dataclass(frozen=True, slots=True)
class Binding(Node):
    """`s in 0..S` of a `for`."""

    name: Word
    values: "Expr"


@dataclass(frozen=True, slots=True)
class Comprehension(Node):
    item: "Expr"
    bindings: tuple[Binding, ...]


@dataclass(frozen=True, slots=True)
class Keyed(Node):
    """`m = 3` in brackets."""

    name: Word
    value: "Expr"


@dataclass(frozen=True, slots=True)
class Attribute(Node):
    target: "Expr"
    name: Word


@dataclass(frozen=True, slots=True)
class Call(Node):
    function: "Expr"
    arguments: tuple["Expr | Keyed", ...]


@dataclass(frozen=True, slots=True)
class Pick(Node):
    """`model["h.*"]`, `stage[s]`, `attn[m = 3]`."""

    target: "Expr"
    keys: tuple["Expr | Keyed", ...]


@dataclass(frozen=True, slots=True)
class Unary(Node):
    operator: str
    operand: "Expr"


@dataclass(frozen=True, slots=True)
class Binary(Node):
    operator: str
    left: "Expr"
    right: "Expr"


@dataclass(frozen=True, slots=True)
class Conditional(Node):
    then: "Expr"
    test: "Expr"
    other: "Expr"


Expr = Name | Number | Text | ListOf | Comprehension | Attribute | Call | Pick | Unary | Binary | Conditional


# ---- statements ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Param(Node):
    name: Word
    default: Expr
    help: str | None


@dataclass(frozen=True, slots=True)
class Mesh(Node):
    name: Word
    axes: tuple[Keyed, ...]


@dataclass(frozen=True, slots=True)
class Let(Node):
    """A value, or with `formals` a family of values."""

    name: Word
    formals: tuple[Word, ...] | None
    value: Expr


@dataclass(frozen=True, slots=True)
class Use(Node):
    """`use pipeline: names` of the standard library, or `use "mine.ssp": names` of a file."""

    module: Word | Text
    names: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Dim(Node):
    name: Word
    value: Expr


@dataclass(frozen=True, slots=True)
class Require(Node):
    test: Expr
    why: str | None


@dataclass(frozen=True, slots=True)
class Return(Node):
    value: Expr


@dataclass(frozen=True, slots=True)
class Cut(Node):
    """`tp`, `m = M` or `m = [3, 5]` of a `split`."""

    name: Word
    count: Expr | None


@dataclass(frozen=True, slots=True)
class Split(Node):
    operators: Expr
    dim: Word
    cuts: tuple[Cut, ...]


@dataclass(frozen=True, slots=True)
class Assign(Node):
    operators: Expr
    devices: Expr


@dataclass(frozen=True, slots=True)
class Order(Node):
    steps: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class At(Node):
    tasks: Expr
    time: Expr


@dataclass(frozen=True, slots=True)
class Clock(Node):
    """`order by clock`; `by` is the word that stands there."""

    by: Word
    bindings: tuple[Binding, ...]
    rows: tuple[At, ...]


@dataclass(frozen=True, slots=True)
class Recompute(Node):
    operators: Expr


@dataclass(frozen=True, slots=True)
class Do(Node):
    """A call as a statement."""

    call: Call


@dataclass(frozen=True, slots=True)
class For(Node):
    """A loop; `is_suffix` when it stands behind its one statement."""

    bindings: tuple[Binding, ...]
    body: tuple["Statement", ...]
    is_suffix: bool


@dataclass(frozen=True, slots=True)
class Branch(Node):
    test: Expr
    body: tuple["Statement", ...]


@dataclass(frozen=True, slots=True)
class If(Node):
    branches: tuple[Branch, ...]
    other: tuple["Statement", ...]


@dataclass(frozen=True, slots=True)
class Def(Node):
    name: Word
    formals: tuple[Word, ...]
    body: tuple["Statement", ...]


Statement = (
    Param | Mesh | Let | Use | Dim | Require | Return | Split | Assign | Order | Clock | Recompute | Do | For | If | Def
)


@dataclass(frozen=True, slots=True)
class Script(Node):
    statements: tuple[Statement, ...]
