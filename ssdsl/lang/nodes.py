"""The syntax of a plan as values. Spans give the place of a node in the text; comparisons of nodes ignore them.

A kind of statement is one class here, with its keyword, an example and its help. Error messages, `:help`, completion
and formatting follow from the classes: see `docs/extending.md`.
"""

from collections.abc import Container, Iterator
from typing import Any, ClassVar, get_args

from ssdsl.record import Record
from ssdsl.text.source import Span


class Node(Record, kw_only=True):
    """A piece of a plan's text."""

    span: Span

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash((type(self), self.parts))

    @property
    def parts(self) -> tuple[Any, ...]:
        """Its fields without the span."""
        return tuple(getattr(self, name) for name in self.__struct_fields__ if name != "span")


class Word(Node):
    """A name that the statement itself introduces or looks up."""

    text: str


# ---- expressions -----------------------------------------------------------------------------------------------------


class NameExpression(Node):
    text: str


class Number(Node):
    """A whole or decimal number, as it is written."""

    text: str


class Text(Node):
    value: str


class ListOf(Node):
    items: tuple["Expr", ...]


class Binding(Node):
    """`s in 0..S` of a `for`."""

    name: Word
    values: "Expr"


class Comprehension(Node):
    """`[2 * s for s in 0..S]`."""

    item: "Expr"
    bindings: tuple[Binding, ...]


class Keyed(Node):
    """`m = 3` in brackets."""

    name: Word
    value: "Expr"


class Attribute(Node):
    """`stage[s].fwd`, `model.weights`."""

    target: "Expr"
    name: Word


class Call(Node):
    function: "Expr"
    arguments: tuple["Expr | Keyed", ...]


class Pick(Node):
    """`model["h.*"]`, `stage[s]`, `attn[m = 3]`."""

    target: "Expr"
    keys: tuple["Expr | Keyed", ...]


class Unary(Node):
    operator: str
    operand: "Expr"


class Binary(Node):
    operator: str
    left: "Expr"
    right: "Expr"


class Conditional(Node):
    """`2 if D > 1 else 1`; `then` is the value if the `test` holds."""

    then: "Expr"
    test: "Expr"
    other: "Expr"


Expr = NameExpression | Number | Text | ListOf | Comprehension | Attribute | Call | Pick | Unary | Binary | Conditional


# ---- statements ------------------------------------------------------------------------------------------------------


class Keyworded(Node):
    """A statement that begins with a keyword of its own."""

    keyword: ClassVar[str]
    form: ClassVar[str]  # an example of its line
    about: ClassVar[str]  # what `:help` says
    spelling: ClassVar[str] = ""  # the template over its fields by which it is formatted; if none, `write.py` does it


class ParamStatement(Keyworded):
    keyword = "param"
    form = 'param N = 2 in [1, 2, 4] "help"'
    about = "A number that the user may set: `--set N=8`; with `in`, those that a sweep tries."

    name: Word
    default: Expr
    domain: "Expr | None"
    help: str | None


class MeshStatement(Keyworded):
    keyword = "mesh"
    form = "mesh gpus(dp = 2, tp = 2)"
    about = (
        "The devices, row-major; `gpus[pp = s]` is a slice of them. With `for` behind it, a list of meshes: `gpus[s]`; "
        "with `on gpus[pp = 1]`, devices of an earlier mesh."
    )

    name: Word
    axes: tuple[Keyed, ...]
    on: "On | None" = None


class On(Node):
    """`on gpus[pp = 1], gpus[pp = 3]`: the devices of a mesh; `word` is "on" where it is spelt right."""

    word: Word
    devices: "tuple[Expr, ...]"


class LetStatement(Keyworded):
    """A value, or with `formals` a family of values."""

    keyword = "let"
    form = "let name = value"
    about = "A value, or with arguments, `let f(s, m) = ...`, a family of values."

    name: Word
    formals: tuple[Word, ...] | None
    value: Expr


class UseStatement(Keyworded):
    """`use pipeline: names` of the standard library, or `use "mine.ssp": names` of a file."""

    keyword = "use"
    form = "use pipeline: one_f_one_b"
    about = 'Functions of the standard library, or of a file beside the plan: `use "mine.ssp": f`.'

    module: Word | Text
    names: tuple[Word, ...]


class DimStatement(Keyworded):
    keyword = "dim"
    form = "dim name = operators.name"
    about = "A further name for a dimension, where the analysis found no good one."
    spelling = "dim {name} = {value}"

    name: Word
    value: Expr


class Into(Node):
    """One `into` of a `split`: `tp`, `m = M`, `m = [3, 5]` or `cp parts [[0, 3], [1, 2]]`; `phrase` is the word before
    the chunks."""

    name: Word
    count: Expr | None
    phrase: Word | None = None
    chunks: Expr | None = None


class SplitStatement(Keyworded):
    keyword = "split"
    form = "split model by batch into dp, m = 4"
    about = """Cut operators along a dimension: each gets an index. `into dp` takes the number of parts from the mesh's
axis of that name; `into m = 4` says it, and an index that is no axis of the mesh runs its parts one after another,
as micro-batches do. Sizes may be given, `into m = [3, 5]`, and who has which of equal chunks: `into cp parts [[0, 3],
[1, 2]]`. `where possible` leaves operators as they are that cannot be cut so: those that have no such
dimension, one that the parts do not divide, or this index already. `split model.weights by row into dp` keeps state
in parts, `into dp = [3, 3, 2]` in unequal ones; so do `.grads` and `.optimizer`."""

    operators: Expr
    dim: Word
    cuts: tuple[Into, ...]
    where: Word | None = None


class AssignStatement(Keyworded):
    keyword = "assign"
    form = "assign model to gpus"
    about = "Put operators on devices: a part goes where the axes equal its indices of the same name."

    operators: Expr
    devices: Expr
    copies: "tuple[Expr, ...]" = ()


class OrderStatement(Keyworded):
    keyword = "order"
    form = "order a -> b"
    about = "All tasks of A before all of B, also across devices; they agree on every index that neither fixes."

    steps: tuple[Expr, ...]


class At(Node):
    """`stage[s].fwd[m = m] at 2 * m`: a row of `order by clock`."""

    tasks: Expr
    time: Expr


class ClockStatement(Keyworded):
    """`order by clock`; `by` is the word that stands there."""

    keyword = "order"
    form = "order by clock for s in 0..S:"
    about = "`order by clock for s in 0..S:` and rows `TASKS at TIME` sort what each device runs."

    by: Word
    bindings: tuple[Binding, ...]
    rows: tuple[At, ...]


class RecomputeStatement(Keyworded):
    keyword = "recompute"
    form = "recompute operators"
    about = "Drop activations and compute them again in backward."
    spelling = "recompute {operators}"

    operators: Expr


class PrefetchStatement(Keyworded):
    keyword = "prefetch"
    form = "prefetch operators by 4"
    about = "Ask for values that operators receive so many ahead."
    spelling = "prefetch {operators} by {ahead}"

    operators: Expr
    ahead: Expr


class BucketStatement(Keyworded):
    """`bucket` is a keyword here alone: a name, an index or a dimension may be called so."""

    keyword = "bucket"
    form = "bucket operators.grads by 25"
    about = "Reduce gradients together in buckets of so many megabytes."
    spelling = "bucket {operators} by {megabytes}"

    operators: Expr
    megabytes: Expr


class KeptParts(Node):
    """`by row into local` in a `keep`: the axes over which what is kept is in parts."""

    dim: Word
    axes: tuple[Word, ...]


class KeepStatement(Keyworded):
    """`keep` is a keyword here alone. `through` is an index, or `step`; `phase` is the word behind `in`."""

    keyword = "keep"
    form = "keep operators.weights through m"
    about = """Keep weights that are in parts once they are gathered, through all parts of an index or `through step`,
and complete their gradients once; `in backward` keeps them there alone. `by row into local` keeps them in other parts,
which are then gathered."""

    operators: Expr
    cut: KeptParts | None
    through: Word
    phase: Word | None


class PrecisionStatement(Keyworded):
    """`precision` is a keyword here alone; `dtype` is a word such as `bf16`."""

    keyword = "precision"
    form = "precision operators to bf16"
    about = "Operators compute in this type: what they read is cast, and so is what others read of them."
    spelling = "precision {operators} to {dtype}"

    operators: Expr
    dtype: Word


class CompressStatement(Keyworded):
    """`compress` and `along` are keywords here alone; `how` is `topk(64)` or `int8`."""

    keyword = "compress"
    form = "compress operators by topk(64) along embed"
    about = "What others read of these operators keeps the largest numbers of each line, and so do its gradients."
    spelling = "compress {operators} by {how} along {dim}"

    operators: Expr
    how: Expr
    dim: Word


class RequireStatement(Keyworded):
    keyword = "require"
    form = 'require M >= S, "why"'
    about = "The plan's own precondition."

    test: Expr
    why: str | None


class Do(Node):
    """A call as a statement."""

    call: Call


class DefStatement(Keyworded):
    keyword = "def"
    form = "def name(a, b):"
    about = "A function: its statements are those of whoever calls it. The block ends with an empty line."

    name: Word
    formals: tuple[Word, ...]
    body: tuple["Statement", ...]


class ReturnStatement(Keyworded):
    keyword = "return"
    form = "return value"
    about = "The value of a function."
    spelling = "return {value}"

    value: Expr


class ForStatement(Keyworded):
    """A loop; `is_suffix` when it stands after its one statement."""

    keyword = "for"
    form = "for s in 0..S:"
    about = "A loop; it also stands behind a statement: `assign stage[s] to gpus[pp = s] for s in 0..S`."

    bindings: tuple[Binding, ...]
    body: tuple["Statement", ...]
    is_suffix: bool


class Branch(Node):
    """`if` or `elif`, with its block."""

    test: Expr
    body: tuple["Statement", ...]


class IfStatement(Keyworded):
    keyword = "if"
    form = "if D > 1:"
    about = "A condition, with `elif` and `else`."

    branches: tuple[Branch, ...]
    other: tuple["Statement", ...]


class EitherStatement(Keyworded):
    """`either` is a keyword here alone. The first branch is what runs without a search."""

    keyword = "either"
    form = "either:"
    about = (
        "A choice, with `or`: the first block is what the plan says; a search tries the others, turn by turn of a loop."
    )

    branches: tuple[tuple["Statement", ...], ...]

    @property
    def name(self) -> str:
        """The name under which a search chooses a branch, by the line of the text."""
        return f"either:{self.span.source.line_column(self.span.start)[0]}"


Statement = (  # in the order in which they are listed to a user
    ParamStatement
    | MeshStatement
    | LetStatement
    | UseStatement
    | DimStatement
    | SplitStatement
    | AssignStatement
    | OrderStatement
    | ClockStatement
    | RecomputeStatement
    | PrefetchStatement
    | BucketStatement
    | KeepStatement
    | PrecisionStatement
    | CompressStatement
    | RequireStatement
    | Do
    | DefStatement
    | ReturnStatement
    | ForStatement
    | IfStatement
    | EitherStatement
)


ChoiceStatement = EitherStatement | ParamStatement


def name_of(choice: ChoiceStatement) -> str:
    """The name under which a search chooses a number for it, and `--set` sets one."""
    return choice.name if isinstance(choice, EitherStatement) else choice.name.text


class Script(Node):
    statements: tuple[Statement, ...]

    @property
    def params(self) -> tuple[str, ...]:
        """The names of its params, in the order of the text."""
        return tuple(s.name.text for s in self.statements if isinstance(s, ParamStatement))

    @property
    def choices(self) -> dict[str, "ChoiceStatement"]:
        """What has a number in each turn of a loop, by name, in the order of the text: `either`, and params in
        loops."""
        inside = ((s, node) for s in self.statements for node in walk(s) if isinstance(node, ChoiceStatement))
        found = [node for s, node in inside if node is not s or isinstance(node, EitherStatement)]
        return {name_of(choice): choice for choice in sorted(found, key=lambda node: node.span.start)}

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of the numbers that a setting of it has: its params, and its choices."""
        return *self.params, *self.choices


def statements_by_keyword() -> dict[str, tuple[type[Keyworded], ...]]:
    """The kinds of statements that begin with each keyword; `order` has two."""
    kinds = [kind for kind in get_args(Statement) if issubclass(kind, Keyworded)]
    return {kind.keyword: tuple(k for k in kinds if k.keyword == kind.keyword) for kind in kinds}


STATEMENTS = statements_by_keyword()
SOFT_STATEMENTS: tuple[type[Keyworded], ...] = (  # keywords where a statement begins, and names elsewhere
    *(BucketStatement, KeepStatement, PrecisionStatement, CompressStatement, EitherStatement),
)


def walk(node: Node) -> Iterator[Node]:
    """A node and all nodes in it, in the order of the text."""
    yield node
    for child in node.parts:
        for part in child if isinstance(child, tuple) else (child,):
            if isinstance(part, Node):
                yield from walk(part)


def calls_of(node: Node, names: Container[str]) -> Iterator[tuple[str, Call]]:
    """The calls of functions with these names in a node, each with the name, in the order of the text."""
    for found in walk(node):
        if isinstance(found, Call) and isinstance(found.function, NameExpression) and found.function.text in names:
            yield found.function.text, found
