"""The names that the model and the plan so far can offer, each with a word about it."""

from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from ssdsl.assist.complete.position import Position
from ssdsl.assist.describe import describe
from ssdsl.assist.reading import DraftReading
from ssdsl.lang import nodes
from ssdsl.lang.assets import library_files
from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source
from ssdsl.lang.suggest import counted
from ssdsl.model.graph import Operator
from ssdsl.plan.context import Context
from ssdsl.plan.eval.select import GATHERS
from ssdsl.plan.eval.units import is_number
from ssdsl.plan.facts import index_names
from ssdsl.plan.paths import starred
from ssdsl.plan.plan import Phase, State
from ssdsl.plan.statements.split import base_name
from ssdsl.plan.values import Devices, Selection, StateOf
from ssdsl.record import Record
from ssdsl.text.diagnostic import PlanError

ABOUT = (
    "forward",
    "the second forward of what is recomputed",
    "backward",
    "backward: gradients of inputs",
    "backward: gradients of weights",
)
STATES = {State.WEIGHTS: "weights", State.GRADS: "their gradients", State.OPTIMIZER: "the optimizer's state"}
CONSTANTS = ("none", "any", "true", "false")  # offered behind `=`, and once their first letter is typed


class Offer(Record):
    """A word that may replace the last `typed` characters, and a word about it."""

    text: str
    about: str = ""
    typed: int = 0


def to_use(known: DraftReading, here: Position) -> Iterator[Offer]:
    if here.types == ("USE",):
        yield from (Offer(path.stem, "of the standard library") for path in library_files())
    else:
        yield from (Offer(name, about) for name, about in _definitions(known, str(here.line[1])))


def behind_dot(known: DraftReading, here: Position) -> Iterator[Offer]:
    """The kinds, phases and states of the selection; in `order` and in the rows of a clock, phases come first."""
    ctx = known.context
    if here.types[:1] == ("SPLIT",) and "BY" in here.types:
        return
    value = known.value_of(before_end(here))
    if value is not None and not isinstance(value, Selection):
        return
    names = value.operators if value is not None else ctx.model.compute
    operators = ctx.model.ordered(ctx.model.only_compute(names) or names)
    kinds = [Offer(kind, counted(n, "operator")) for kind, n in _counts(op.kind for op in operators).items()]
    phases = (
        [Offer(str(p), about) for p, about in zip(Phase, ABOUT, strict=True)]
        if value is None or value.phase is None
        else []
    )
    states = [Offer(str(s), about) for s, about in STATES.items()]
    states += [Offer(GATHERS, "gathered again in backward")] if here.types[:1] == ("RECOMPUTE",) else []
    in_clock = here.types[0] == "NAME" and here.text.rpartition("\n")[2].startswith(" ")
    in_order = here.types[0] == "ORDER" or in_clock
    yield from (*phases, *kinds) if in_order else (*kinds, *states, *phases)


def dimensions(known: DraftReading, here: Position) -> Iterator[Offer]:
    """The dimensions by which some of the selected operators can be split, the most frequent first."""
    ctx = known.context
    if here.types[0] != "SPLIT":
        yield Offer("clock", "order by clock for s in 0..S:")
        return
    value = known.value_of(here.between(1, len(here.line) - 1))
    if isinstance(value, StateOf):
        yield Offer("row", "the first axis of each weight")
        yield Offer("matrix", "whole weights, of the optimizer's state")
        return
    operators = ctx.model.ordered(value.operators) if isinstance(value, Selection) else ctx.model.operators.values()
    yield from _free_dims(ctx, operators)
    yield from (Offer(name, "named by `dim`") for name in ctx.facts.aliases)


def _free_dims(ctx: Context, operators: Iterable[Operator]) -> Iterator[Offer]:
    free = [d for op in operators for d in op.dims if d.size > 1 and not d.fixed]
    dims = [(starred(base_name(ctx, d)), d.size) for d in free]
    counts = _counts(name for name, _ in dims)
    sizes: dict[str, list[int]] = {}
    for name, size in dict.fromkeys(dims):
        sizes.setdefault(name, []).append(size)
    for name, count in counts.items():
        some = ", ".join(map(str, sizes[name][:3]))
        yield Offer(name, f"{some}, in {counted(count, 'operator')}")


def indices(known: DraftReading) -> Iterator[Offer]:
    """The axes of the meshes, then the existing indices."""
    ctx = known.context
    for mesh, axis, size in ctx.facts.axes():
        yield Offer(axis, f"{size}, an axis of {mesh.name}")
    for name in index_names(ctx.facts, ctx.model, frozenset(ctx.facts.operators)):
        yield Offer(name, "an index")


def devices(known: DraftReading) -> Iterator[Offer]:
    ctx = known.context
    for name, value in known.context.scope.values.items():
        if isinstance(value, Devices):
            yield Offer(name, describe(ctx, value))


def in_brackets(known: DraftReading, value: Selection | Devices) -> Iterator[Offer]:
    """`[pp = ` for devices, `[m = ` or a path for a selection."""
    ctx = known.context
    if isinstance(value, Devices):
        for axis, size in ctx.facts.meshes[value.mesh].axes:
            if axis not in dict(value.fixed):
                yield Offer(f"{axis} = ", f"0 to {size - 1}")
        return
    for name in index_names(ctx.facts, ctx.model, value.operators):
        yield Offer(f"{name} = ", f"0 to {ctx.facts.count(value.operators, name) - 1}, none or any")
    yield Offer('"', "a module path")


def in_scope(known: DraftReading, selects: bool) -> Iterator[Offer]:
    """The plan's own names, the latest first, then built-in ones; if it `selects`, operators come first."""
    ctx = known.context
    scope = ctx.scope
    every = scope.parent.values if scope.parent is not None else {}
    names = [*reversed(scope.values.items()), *every.items()]
    if selects:
        names.sort(key=lambda item: not isinstance(item[1], Selection | tuple))
    for name, value in names:
        yield Offer(name, "" if name in CONSTANTS else describe(ctx, value))


def _counts(words: Iterable[str]) -> dict[str, int]:
    """The number of times that each word occurs, the most frequent first."""
    return dict(Counter(words).most_common())


def _definitions(known: DraftReading, written: str) -> Iterator[tuple[str, str]]:
    """The names that a file defines; `written` is a word of the standard library, or a string."""
    files = {path.stem: path for path in library_files()}
    path = known.folder / written.strip('"') if written.startswith('"') else files.get(written)
    try:
        statements = parse(read_source(path)).statements if path else ()
    except PlanError:
        return
    for s in statements:
        if isinstance(s, nodes.DefStatement | nodes.LetStatement):
            formals = s.formals
            yield s.name.text, "" if formals is None else f"({', '.join(w.text for w in formals)})"


OPENS, CLOSES = ("LPAR", "LSQB"), ("RPAR", "RSQB")


def before_end(here: Position) -> str | None:
    """The text of the expression in front of the last dot, or of the open bracket."""
    types = here.types
    last = len(types) - 1
    end = _opening(types, last) if types[last] == "COMMA" else last
    if end is None or types[end] not in ("DOT", "LSQB"):
        return None
    start = end
    while start > 0:
        if types[start - 1] in CLOSES:
            start = _opening(types, start - 1) or 0
        elif types[start - 1] in ("NAME", "DOT", "STRING"):
            start -= 1
        else:
            break
        if types[start] == "NAME" and (start == 0 or types[start - 1] != "DOT"):
            break
    return here.between(start, end) or None


def _opening(types: tuple[str, ...], end: int) -> int | None:
    """The position of the bracket that is open at a token, or that this closing bracket closes."""
    depth = 0 if types[end] in CLOSES else 1
    for at in range(end, -1, -1):
        depth += (types[at] in CLOSES) - (types[at] in OPENS)
        if depth == 0:
            return at
    return None


def next_segments(paths: Iterable[str], typed: str) -> tuple[str, ...]:
    """The segments that may follow the last dot of a path. At the start of a path all segments, as paths may begin
    anywhere."""
    prefix = typed.split(".")[:-1]
    found: dict[str, None] = {}
    for segment in _behind(paths, prefix):
        if is_number(segment):
            found.setdefault("*")
        if prefix or not is_number(segment):
            found.setdefault(segment)
    return tuple(found) if prefix else (*(s for s in found if s != "*"), "*")


def _behind(paths: Iterable[str], prefix: list[str]) -> Iterator[str]:
    """The segments after each match of the prefix."""
    for path in paths:
        segments = path.split(".") if path else []
        for start in range(len(segments) - len(prefix)):
            at = start + len(prefix)
            if all(p == "**" or fnmatchcase(s, p) for s, p in zip(segments[start:at], prefix, strict=True)):
                yield segments[at]
