"""Chooses the lengths of the slices in which sequences go through a pipeline, as `into t = slices(T)` leaves them open.

What a slice takes on the slowest stage follows from simulated plans with other numbers of equal slices: a time for each
slice, one for each of its tokens, one for each key that a token sees, and no product narrower than the narrowest that
was simulated. `solve/slices.py` chooses the lengths. The plan is simulated and proved like any other.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise, product
from typing import NamedTuple

from ssdsl.lang import nodes
from ssdsl.plan.plan import Plan
from ssdsl.simulate.report import Report
from ssdsl.simulate.timeline import EventKind
from ssdsl.sketch.answers.write import with_answer
from ssdsl.sketch.sketch import Sketch, Values
from ssdsl.solve.slices import slices

SLICES = "slices"
TASKS = (EventKind.FORWARD, EventKind.BACKWARD, EventKind.DGRAD, EventKind.WGRAD)
PLACES = 128  # at most, at which slices begin


class OpenSlices(NamedTuple):
    """What a plan leaves open: the call, the dimension and the index that it cuts, and the param that is the number of
    slices."""

    call: nodes.Call
    dim: str
    cut: str
    param: str


class Sample(NamedTuple):
    """The seconds of a slice of so many tokens, behind so many, forward and backward on the slowest stage."""

    length: int
    before: int
    seconds: float


def call_of(script: nodes.Script) -> OpenSlices | None:
    """The first cut of a plan into slices whose lengths it leaves open."""
    cuts = ((s, into) for s in script.statements if isinstance(s, nodes.SplitStatement) for into in s.cuts)
    for split, into in cuts:
        match into.count:
            case nodes.Call(nodes.NameExpression("slices"), (nodes.NameExpression(param),)) as call:
                return OpenSlices(call, split.dim.text, into.name.text, param)
    return None


def is_open(sketch: Sketch) -> bool:
    """Whether the plan leaves the lengths of slices open, and their number."""
    found = call_of(sketch.script)
    return found is not None and any(p.name == found.param for p in sketch.open)


def with_slices(sketch: Sketch, values: Values, lengths: Sequence[int]) -> Sketch:
    """The sketch with slices of these lengths. Its params are no longer open, because the lengths depend on them."""
    found = call_of(sketch.script)
    assert found is not None
    text = with_answer(sketch.source.text, found.call, SLICES, f"each = {[*lengths]}")
    return sketch.answered(text, {**values, found.param: len(lengths)})


def samples_of(plan: Plan, report: Report, of: OpenSlices) -> list[Sample]:
    """The slices of a simulated plan; none if it is in one, or if dimensions are cut unlike."""
    dims = ((plan.graph.by_name[n].dims[i.dim], i) for n, r in plan.operators.items() if r.place for i in r.indices)
    sizes = {(dim.size, i.digit) for dim, i in dims if i.name == of.cut and dim.name.partition(".")[0] == of.dim}
    if len(sizes) != 1:
        return []
    ((size, digit),), index = sizes, of.cut
    lengths = digit.sizes or (size // digit.parts,) * digit.parts
    timeline = report.timeline
    spent: dict[tuple[int, int], float] = {}  # by row and slice, of the first sequence
    for event in timeline.events:
        at = dict(event.coordinate)
        first = not any(n for name, n in at.items() if name != index)
        if event.kind in TASKS and index in at and first:
            key = event.row, at[index]
            spent[key] = spent.get(key, 0.0) + event.end_s - event.start_s
    rows = {row: sum(s for (r, _), s in spent.items() if r == row) for row, _ in spent}
    if not rows:
        return []
    slowest = max(rows, key=lambda row: rows[row])
    starts = [*accumulate(lengths, initial=0)]
    return [Sample(end - start, start, spent.get((slowest, n), 0.0)) for n, (start, end) in enumerate(pairwise(starts))]


def lengths_of(samples: Iterable[Sample], stages: int, sequences: int) -> tuple[int, ...]:
    """The lengths of slices that promise the shortest step."""
    known = [*samples]
    tokens = max(s.length + s.before for s in known)
    narrowest = min(s.length for s in known)
    grid = max(1, -(-tokens // PLACES))
    while tokens % grid:
        grid += 1
    once, each, seen = _fitted(known)

    def time(length: int, before: int) -> float:
        return once + each * max(length, narrowest) + seen * length * (before + length / 2)

    return slices(time, tokens, grid, stages, sequences)


def _fitted(samples: Sequence[Sample]) -> tuple[float, float, float]:
    """The seconds of a slice, of a token, and of a token and a key, by least squares."""
    rows = [(1.0, float(s.length), s.length * (s.before + s.length / 2)) for s in samples]
    scale = [max(row[k] for row in rows) for k in range(3)]
    rows = [(row[0] / scale[0], row[1] / scale[1], row[2] / scale[2]) for row in rows]
    matrix = [[sum(row[i] * row[j] for row in rows) for j in range(3)] for i in range(3)]
    right = [sum(row[i] * s.seconds for row, s in zip(rows, samples, strict=True)) for i in range(3)]
    for pivot in range(3):
        matrix[pivot][pivot] += 1e-12
        for row, column in product(range(pivot + 1, 3), [pivot]):
            factor = matrix[row][column] / matrix[pivot][column]
            matrix[row] = [a - factor * b for a, b in zip(matrix[row], matrix[pivot], strict=True)]
            right[row] -= factor * right[pivot]
    found = [0.0] * 3
    for k in (2, 1, 0):
        found[k] = (right[k] - sum(matrix[k][j] * found[j] for j in range(k + 1, 3))) / matrix[k][k]
    once, each, seen = (max(0.0, value / by) for value, by in zip(found, scale, strict=True))
    return once, each, seen
