"""`compress OPS by topk(64) along embed`: what others read of these operators is compressed, and so are the gradients
that come back. It changes what is computed, as `precision` does: one device computes it, too
(`model/alter/compress.py`)."""

from collections.abc import Iterator

from ssdsl.lang import nodes
from ssdsl.lang.formatter.spell import spell
from ssdsl.model.alter.compress import Compressed
from ssdsl.model.alter.recast import FLOATS
from ssdsl.model.graph import Stage, twins
from ssdsl.plan.context import Context
from ssdsl.plan.errors.traced import Conflict, Traced
from ssdsl.plan.errors.values import Wanted, required
from ssdsl.plan.eval.expressions import evaluate, expect
from ssdsl.plan.eval.select import require_some, require_whole
from ssdsl.plan.facts import Facts
from ssdsl.plan.model_index import ModelIndex
from ssdsl.plan.plan import Compression, LineOf
from ssdsl.plan.statements.split import find_dims, no_such_dimension
from ssdsl.plan.values import Number, is_number, is_selection
from ssdsl.text.diagnostic import PlanError

TOPK, INT8 = "topk", "int8"


def compress(ctx: Context, s: nodes.CompressStatement) -> None:
    """Adds the fact for what these operators make and others read. Raises PlanError for another way to compress, and if
    nothing can be compressed so."""
    value = required(evaluate(ctx, s.operators), is_selection, s.operators, Wanted.OPERATORS)
    require_whole(ctx, value, s.operators, "compress")
    operators = ctx.model.only_compute(value.operators - ctx.model.added)
    require_some(ctx, operators, value.of_items, s.operators, "compress")
    k = _kept(ctx, s.how)
    lines = () if ctx.model.altered is not None or not operators else tuple(_lines(ctx, s, operators, k))
    ctx.facts.compressions.append(Compression(operators, spell(s.how), lines, s.dim.text, spell(s.operators), s.span))


def _kept(ctx: Context, how: nodes.Expr) -> Number | None:
    """How many numbers of a line are kept, or which share of them; None for all of them in eight bits. Raises
    PlanError."""
    match how:
        case nodes.NameExpression(name) if name == INT8:
            return None
        case nodes.Call(nodes.NameExpression(name), (given,)) if name == TOPK and not isinstance(given, nodes.Keyed):
            return expect(ctx, given, is_number, Wanted.NUMBER)
    raise PlanError(NoSuchCompression(how.span, spell(how)))


def _lines(ctx: Context, s: nodes.CompressStatement, operators: frozenset[str], k: Number | None) -> Iterator[LineOf]:
    """The results that are compressed, with the axis of each."""
    places = find_dims(ctx, operators, s.dim.text).places
    if not places:
        raise PlanError(no_such_dimension(ctx, s.dim, operators))
    graph, found = ctx.model.graph, False
    for operator, dim in places:
        for number, operand in enumerate(operator.outputs):
            result = graph.values[operand.value]
            if not _leaves(ctx.model, operand.value, operators) or not operand.carries(dim):
                continue
            if result.dtype not in FLOATS or not result.differentiable:
                continue
            axis = next(a for a, dims in enumerate(operand.axes) if dim in dims)
            if len(operand.axes[axis]) > 1:
                names = tuple(operator.dims[d].name for d in operand.axes[axis])
                raise PlanError(JoinedLine(s.dim.span, s.dim.text, operator.kind, operator.module, names))
            size = result.shape[axis]
            if k is not None and not 0 < k <= size:
                raise PlanError(KeepsNone(s.how.span, spell(s.how), size, s.dim.text))
            found = True
            kept = None if k is None else max(1, int(k * size)) if k < 1 else int(k)
            yield LineOf(operator.name, number, axis, kept)
    if not found:
        raise PlanError(NothingLeaves(s.operators.span, s.dim.text))


def _leaves(model: ModelIndex, value: str, operators: frozenset[str]) -> bool:
    """Whether an operator that a plan places reads a value outside of these."""
    readers = model.graph.readers.get(value, ())
    return any(o.stage is Stage.COMPUTE and o.name not in operators for o in readers)


def compressed_by(model: ModelIndex, facts: Facts) -> tuple[Compressed, ...]:
    """The results that statements compress. Raises PlanError for one that two of them compress."""
    if not facts.compressions:
        return ()
    keys = {o.name: twin for twin, o in twins(model.graph.operators)}
    by: dict[tuple[str, int], Compression] = {}
    found: dict[LineOf, Compressed] = {}
    for stated in facts.compressions:
        inside = frozenset(keys[name] for name in stated.operators)
        for line in stated.lines:
            operator = model.operators[line.operator]
            if (first := by.setdefault((line.operator, line.result), stated)) != stated:
                raise PlanError(CompressedTwice(stated.span, operator.kind, operator.module, first=first.span))
            k = _size(model, line) if model.lossless else line.k
            found[line] = Compressed(keys[line.operator], line.result, line.axis, k, inside)
    return tuple(found.values())


def _size(model: ModelIndex, line: LineOf) -> int:
    return model.graph.values[model.operators[line.operator].outputs[line.result].value].shape[line.axis]


class NoSuchCompression(Traced):
    """`compress OPS by topk(64) along embed` keeps the 64 largest numbers of each line along `embed`, by absolute
    value; `by int8` keeps all of them in eight bits, with a scale for each line."""

    code = "E0216"
    title = "nothing is compressed by `{how}`"
    help = "write `topk(K)`, with the number of numbers that each line keeps, or `int8`"
    how: str


class KeepsNone(Traced):
    """`topk(k)` keeps k numbers of each line: at least one, and no more than it has. Less than one is the share that is
    kept: `topk(0.01)`."""

    code = "E0249"
    title = "`{how}` keeps none, or more than the {size} numbers of a line along `{dim}`"
    help = "write a number from 1 to {size}, or a share such as `topk(0.1)`"
    how: str
    size: int
    dim: str


class NothingLeaves(Traced):
    """`compress OPS by topk(64) along embed` compresses results of these operators that others read, that have this
    dimension, and that gradients come back to."""

    code = "E0293"
    title = "other operators read nothing of these that has `{dim}`"
    help = "select fewer, such as the operators of one stage: what they make is then read by others"
    dim: str


class JoinedLine(Traced):
    """A line that is compressed lies along one axis of a tensor. An axis may be made of several dimensions, as heads
    and what each head has."""

    code = "E0295"
    title = "`{kind}` of `{module}` makes `{dim}` in one axis with {rest}"
    help = "compress along another dimension, or what reads this result and makes an axis of its own of it"
    dim: str
    kind: str
    module: str
    names: tuple[str, ...]

    @property
    def rest(self) -> str:
        return " and ".join(f"`{name}`" for name in self.names if name != self.dim)


class CompressedTwice(Conflict):
    """Two `compress` say how a result is compressed."""

    code = "E0291"
    title = "what `{kind}` of `{module}` makes is compressed already"
    help = "remove one"
    earlier = "compressed here first"
    kind: str
    module: str
