"""One `into` of a `split`: the number of parts of a dimension, and the positions that each part has."""

from collections.abc import Iterator

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.parts import BadChunks, BadCount, Homeless, NoSuchPhrase, UnknownCount
from ssdsl.plan.errors.values import Wanted, items_of, places_of, required
from ssdsl.plan.eval.expressions import evaluate
from ssdsl.plan.facts import NumberOrigin
from ssdsl.plan.plan import Mesh
from ssdsl.plan.regions import Digit, merged, near_equal, parts_of, stated
from ssdsl.plan.statements.param import origin_of
from ssdsl.plan.values import Value, is_list, is_whole
from ssdsl.record import Record, replace
from ssdsl.text.diagnostic import PlanError

Chunks = tuple[tuple[int, ...], ...]  # for each part the numbers of its chunks, in order


class SplitParts(Record):
    """`count` parts of a dimension. Each is one chunk, or has the chunks that `chunks` lists for it.

    `sizes` are those of the chunks, if the plan gives them; otherwise chunks are as equal as possible. `origin` is the
    parameter that the count is from.
    """

    cut: nodes.Into
    count: int
    sizes: tuple[int, ...] | None = None
    origin: NumberOrigin | None = None
    chunks: Chunks | None = None

    @property
    def pieces(self) -> int:
        """The number of chunks."""
        return self.count if self.chunks is None else sum(map(len, self.chunks))

    @property
    def total(self) -> int | None:
        """The sum of the sizes that were given."""
        return None if self.sizes is None else sum(self.sizes)

    def go_into(self, size: int, *, unequal: bool = False) -> bool:
        """Whether a dimension of this size can be cut into these parts. With `unequal`, chunks may differ in size."""
        if self.total is not None:
            return size == self.total
        return size >= self.pieces if unequal else size % self.pieces == 0

    def digit(self, size: int) -> Digit:
        """The parts of a dimension of this size; those that are equal runs in order count in parts. If the size is no
        multiple of the number of chunks, the first chunks are larger by one: 10 positions in 4 chunks are 3, 3, 2, 2.
        """
        of_chunk = parts_of(self.sizes) if self.sizes else near_equal(size, self.pieces)
        chunks = self.chunks or [(k,) for k in range(self.count)]
        found = tuple(merged(run for k in part for run in of_chunk[k]) for part in chunks)
        return stated(found, size)  # chunks may add up to equal runs: parts [[0, 1], [2, 3]] are halves


Cutting = tuple[frozenset[str], SplitParts]


def cuttings(ctx: Context, cut: nodes.Into, operators: frozenset[str]) -> list[Cutting]:
    """The operators in groups, each with its parts. The statement gives them; otherwise they are as many as devices of
    the axis with the index's name. If meshes have different axes of that name, each operator's own mesh decides. Raises
    PlanError."""
    bare = cut.count is None and cut.chunks is None
    found = _of_axes(ctx, cut, operators) if bare else [(operators, _written(ctx, cut))]
    return [one for those, parts in found for one in _of_runs(ctx, those, parts)]


def _of_runs(ctx: Context, operators: frozenset[str], parts: SplitParts) -> Iterator[Cutting]:
    """Yields the operators in groups: those that are some of the parts already, as a plan names these, are cut into no
    others."""
    name, left = parts.cut.name.text, operators
    for run in ctx.model.named.get(name, ()):
        those = frozenset(n for n in left if run in ctx.model.parts.get(n, ()))
        left -= those
        sizes = None if parts.sizes is None or parts.chunks is not None else parts.sizes[run.first : run.end]
        yield those, replace(parts, count=run.count, sizes=sizes, chunks=None)
    if left or not operators:
        yield left, parts


def _written(ctx: Context, cut: nodes.Into) -> SplitParts:
    """The parts that a statement gives: a number, sizes, lists of chunks, or chunks with their sizes. Raises
    PlanError."""
    if cut.phrase is not None and cut.phrase.text != "parts":
        raise PlanError(NoSuchPhrase(cut.phrase.span, cut.phrase.text))
    chunks = None if cut.chunks is None else _chunks(ctx, cut, cut.chunks, evaluate(ctx, cut.chunks))
    if cut.count is None:
        assert chunks is not None, "an index that says nothing is cut as its axis is"
        return SplitParts(cut, len(chunks), chunks=chunks)
    value = evaluate(ctx, cut.count)
    origin = origin_of(ctx, cut.count)
    sizes = _sizes(ctx, cut.count, value) if is_list(value) else ()
    number = len(sizes) or required(value, is_whole, cut.count, Wanted.PARTS)
    if number < 1:
        raise PlanError(BadCount(cut.count.span, f"{number} parts"))
    if chunks is not None and number != sum(map(len, chunks)):
        named = sum(map(len, chunks))
        raise PlanError(BadChunks(cut.count.span, named, f"`{cut.name.text}` has {number}", number - 1))
    return SplitParts(cut, number if chunks is None else len(chunks), sizes or None, origin, chunks)


def _sizes(ctx: Context, written: nodes.Expr, value: Value) -> tuple[int, ...]:
    """The sizes of the parts that a list gives. Raises PlanError."""
    sizes = items_of(ctx, value, is_whole, written, Wanted.PARTS)
    for size, place in zip(sizes, places_of(written, len(sizes)), strict=True):
        if size < 1:
            raise PlanError(BadCount(place.span, f"a part of size {size}"))
    return sizes


def _chunks(ctx: Context, cut: nodes.Into, written: nodes.Expr, value: Value) -> Chunks:
    """The chunks of each part. Raises PlanError unless every chunk is in exactly one part."""
    lists = items_of(ctx, value, is_list, written, Wanted.CHUNKS)
    places = places_of(written, len(lists))
    found = tuple(
        items_of(ctx, part, is_whole, at, Wanted.OF_PART, least=0) for part, at in zip(lists, places, strict=True)
    )
    count = sum(map(len, found))
    if (wrong := _wrong(found)) is not None:
        what, part = wrong
        raise PlanError(BadChunks((written if part is None else places[part]).span, count, what, count - 1))
    return tuple(tuple(sorted(part)) for part in found)


def _wrong(parts: Chunks) -> tuple[str, int | None] | None:
    """The mistake in a list of chunks, in words, and the number of the part that makes it; None if there is none."""
    seen: set[int] = set()
    for k, part in enumerate(parts):
        if not part:
            return f"part {k} has none", k
        if min(part) < 0:
            return f"there is no chunk {min(part)}", k
        for n in part:
            if n in seen:
                return f"chunk {n} appears twice", k
            seen.add(n)
    missing = next((k for k in range(len(seen)) if k not in seen), None)
    return None if missing is None else (f"chunk {missing} is in no part", None)


def _of_axes(ctx: Context, cut: nodes.Into, operators: frozenset[str]) -> list[Cutting]:
    """The operators in groups, each with as many parts as the axis of its mesh has devices. Raises PlanError if the
    sizes differ between meshes, and an operator has no known place, or one on a mesh without this axis. Operators that
    no plan places are then left out: they are cut like those that read them."""
    name = cut.name.text
    if name in ctx.facts.broken:  # its `mesh` statement failed, and the mistake is reported there
        raise PlanError()
    sizes = {size: mesh for mesh, axis, size in ctx.facts.axes() if axis == name}
    groups: dict[int | None, frozenset[str]] = {}
    if len(sizes) == 1:
        groups[next(iter(sizes))] = operators
    elif sizes:
        groups = _by_size(ctx, name, operators)
    if not groups or None in groups:
        known = tuple((m.name, m.axes) for m in ctx.facts.meshes.values())
        raise PlanError(UnknownCount(cut.name.span, name, known, _without(ctx, groups.get(None, frozenset()))))
    origins = ctx.facts.axis_origins
    return [(those, SplitParts(cut, n, origin=origins.get((sizes[n].name, name)))) for n, those in groups.items() if n]


def _without(ctx: Context, operators: frozenset[str]) -> Homeless | None:
    """The first of the operators, whose axis is unknown."""
    first = next(iter(ctx.model.ordered(operators)), None)
    if first is None:
        return None
    mesh = _mesh_of(ctx, first.name)
    return Homeless(first.module, None if mesh is None else mesh.name)


def _mesh_of(ctx: Context, operator: str) -> Mesh | None:
    """The mesh of an operator: where it is, or where a statement below puts it, as an earlier reading found; None if
    neither is known."""
    place = ctx.facts.of(operator).place
    name = ctx.facts.later.get(operator) if place is None else place.mesh
    return None if name is None else ctx.facts.meshes.get(name)


def _by_size(ctx: Context, axis: str, operators: frozenset[str]) -> dict[int | None, frozenset[str]]:
    """The operators by the size of this axis of their mesh; under None those without a known place, or without the
    axis."""
    groups: dict[int | None, set[str]] = {}
    for op in ctx.model.ordered(ctx.model.only_compute(operators)):
        mesh = _mesh_of(ctx, op.name)
        groups.setdefault(None if mesh is None else dict(mesh.axes).get(axis), set()).add(op.name)
    return {size: frozenset(names) for size, names in groups.items()}
