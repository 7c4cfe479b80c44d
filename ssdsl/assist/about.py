"""What a place of a plan means for this model, in Markdown: a name, a path, a dimension, a statement."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

from ssdsl.assist.changes import changes
from ssdsl.assist.describe import described
from ssdsl.assist.names import NameKind, Occurrence, at
from ssdsl.assist.reading import DraftReading
from ssdsl.lang import nodes
from ssdsl.lang.nodes import STATEMENTS
from ssdsl.lang.suggest import counted, joined
from ssdsl.model.graph import Stage
from ssdsl.plan.interpret import context_without_errors
from ssdsl.plan.paths import starred
from ssdsl.plan.statements.split import find_dims
from ssdsl.plan.values import PlanFunction
from ssdsl.record import Record, replace
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Span

MOST_DIVISORS = 12
Costs = Mapping[int, Sequence[str]]  # what a simulated step says of a line of the plan


class About(Record):
    """What a place means: the piece of the text that it is about, and Markdown."""

    span: Span
    text: str


def about(
    known: DraftReading, script: nodes.Script, found: Sequence[Occurrence], offset: int, costs: Costs | None = None
) -> About | None:
    """What stands at a place of the text; None for blanks, comments and signs. `costs` are shown of a statement."""
    statement = innermost(script, offset, nodes.Keyworded)
    if isinstance(statement, nodes.Keyworded) and offset - statement.span.start <= len(statement.keyword):
        return _of_statement(known, script, statement, costs or {})
    if (one := at(found, offset)) is not None:
        return About(one.span, "\n\n".join(_of_name(known, one)))
    piece = innermost(script, offset, (nodes.Attribute, nodes.Pick))
    if piece is None or (value := known.value_of(piece.span.text)) is None:
        return None
    return About(piece.span, f"{_fenced(piece.span.text)}\n\n{_listed(described(known.context, value))}")


def innermost(script: nodes.Script, offset: int, kinds: type | tuple[type, ...]) -> nodes.Node | None:
    """The innermost node of these kinds that a place is in."""
    inside = (node for s in script.statements for node in nodes.walk(s) if isinstance(node, kinds))
    at_place = [node for node in inside if node.span.start <= offset <= node.span.end]
    return min(at_place, key=lambda node: node.span.end - node.span.start, default=None)


# -- statements --------------------------------------------------------------------------------------------------------


def _of_statement(known: DraftReading, script: nodes.Script, s: nodes.Keyworded, costs: Costs) -> About:
    """Its form, and what it adds to the plan above it."""
    kinds = STATEMENTS[s.keyword]
    kind = type(s) if type(s) in kinds else kinds[0]
    keyword = Span(s.span.source, s.span.start, s.span.start + len(s.keyword))
    first, last = s.span.line, s.span.line + s.span.text.count("\n")
    paid = (line for number in range(first, last + 1) for line in costs.get(number, ()))
    pieces = _fenced(kind.form), " ".join(kind.about.split()), _listed(added_by(known, script, s)), _listed(paid)
    return About(keyword, "\n\n".join(piece for piece in pieces if piece))


def added_by(known: DraftReading, script: nodes.Script, s: nodes.Keyworded) -> tuple[str, ...]:
    """What a statement adds to the plan above it, in words; of one in a block, what the block adds."""
    *above, own = (one for one in script.statements if one.span.start <= s.span.start)
    return changes(*(_read(known, replace(script, statements=some)) for some in (tuple(above), (*above, own))))


def _read(known: DraftReading, script: nodes.Script) -> DraftReading:
    """The facts of some of the statements."""
    ctx = known.context
    context = context_without_errors(script, ctx.model, ctx.overrides, known.folder)
    return DraftReading(known.source, context, known.folder)


# -- names -------------------------------------------------------------------------------------------------------------


def _of_name(known: DraftReading, one: Occurrence) -> Iterator[str]:
    match one.kind:
        case NameKind.INDEX:
            yield f"index `{one.name}`"
            yield _listed(_of_index(known, one.name))
        case NameKind.DIMENSION:
            yield f"dimension `{one.name}`"
            yield _listed(_of_dimension(known, one.name))
        case NameKind.PARAM:
            yield _fenced(f"param {one.name} = {known.context.facts.params.get(one.name, '?')}")
            yield "; ".join(_of_param(known, one.name))
        case NameKind.ARGUMENT:
            yield f"`{one.name}`, bound in line {one.bound.line}" if one.bound is not None else f"`{one.name}`"
        case _:
            yield from _of_value(known, one.name)


def _of_value(known: DraftReading, name: str) -> Iterator[str]:
    ctx = known.context
    try:
        value = ctx.scope.find(name, Span(known.source, 0, 0))
    except PlanError:
        return
    if isinstance(value, PlanFunction):
        yield _fenced(f"{name}({', '.join(value.formals)})")
        yield from comment_above(value.node.span)
        if value.node.span.source != known.source:
            yield f"in {value.node.span.source.name}"
        return
    yield _fenced(name)
    yield _listed(described(ctx, value))


def _of_param(known: DraftReading, name: str) -> Iterator[str]:
    ctx = known.context
    if name in ctx.overrides:
        yield "set by the header, or the command"
    if numbers := ctx.facts.domains.get(name):
        yield f"a search tries {joined([*map(str, numbers)], 'and')}"
    axes = [f"`{axis}` of `{mesh.name}`" for mesh, axis, _ in ctx.facts.axes() if _is_of(known, mesh.name, axis, name)]
    if axes:
        yield f"the size of {joined(axes, 'and')}"


def _is_of(known: DraftReading, mesh: str, axis: str, param: str) -> bool:
    origin = known.context.facts.axis_origins.get((mesh, axis))
    return origin is not None and origin.param == param


def _of_index(known: DraftReading, name: str) -> Iterator[str]:
    ctx = known.context
    for mesh, axis, size in ctx.facts.axes():
        if axis == name:
            yield f"an axis of `{mesh.name}`: {counted(size, 'device')}"
    found: Counter[tuple[int, str, int]] = Counter()
    for op in ctx.model.ordered(ctx.model.compute):
        if (index := ctx.facts.index(op.name, name)) is not None:
            dim = op.dims[index.dim]
            found[index.devices, starred(dim.name), dim.size] += 1
    for (parts, dim_name, size), count in found.most_common(MOST_DIVISORS):
        yield f"{counted(parts, 'part')} of `{dim_name}` = {size}, in {counted(count, 'operator')}"


def _of_dimension(known: DraftReading, name: str) -> Iterator[str]:
    ctx = known.context
    sizes = Counter(
        op.dims[place].size
        for op, place in find_dims(ctx, frozenset(ctx.model.operators), name).places
        if op.stage is Stage.COMPUTE
    )
    for size, count in sizes.most_common(MOST_DIVISORS):
        yield f"{size} in {counted(count, 'operator')}; {_divided(size)}"
    if name in ctx.facts.aliases:
        yield "named by `dim`"


def _divided(size: int) -> str:
    numbers = [n for n in range(2, size + 1) if size % n == 0]
    some = [*map(str, numbers[:MOST_DIVISORS])]
    more = f", ... {numbers[-1]}" if len(numbers) > MOST_DIVISORS else ""
    return f"into {', '.join(some)}{more} equal parts" if numbers else "one position"


def comment_above(span: Span) -> Iterator[str]:
    """The comment right above a line, as a sentence."""
    lines = span.source.text[: span.start].split("\n")[:-1]
    block = [*takewhile(lambda line: line.startswith("#"), reversed(lines))]
    if block:
        yield " ".join(line.lstrip("# ").rstrip() for line in reversed(block))


def _listed(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _fenced(text: str) -> str:
    return f"```ssp\n{text}\n```"
