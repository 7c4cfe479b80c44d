"""What goes wrong with operators: their splits, operands, kernels and sides."""

import itertools
from collections.abc import Callable, Iterator

from ssdsl.ir.function import (
    Carried,
    Kernel,
    Offset,
    OpPart,
    Side,
    Split,
)
from ssdsl.ir.program import Program
from ssdsl.ir.value import Axis, Name, Time
from ssdsl.plan.regions import Digit
from ssdsl.record import replace
from tests.prove.mutations.mutant import (
    Found,
    axes_of,
    instructions,
    mutation,
    put,
    title,
    with_function,
)


def _ops(program: Program) -> Iterator[tuple[str, OpPart, Callable[..., Program]]]:
    for where, instr, become in instructions(program):
        if isinstance(instr, OpPart):
            yield where, instr, become


@mutation
def split_dropped(program: Program) -> Found:
    for where, op, become in _ops(program):
        for k, split in enumerate(op.splits):
            yield f"{where} {split.coordinate}", become(replace(op, splits=put(op.splits, k)))


@mutation
def split_changed(program: Program) -> Found:
    for where, op, become in _ops(program):
        for k, split in enumerate(op.splits):
            if not isinstance(split, Split):
                continue
            for new in (
                replace(split, digit=replace(split.digit, stride=split.digit.stride * 2)),
                replace(split, digit=replace(split.digit, parts=split.digit.parts * 2)),
                replace(split, dim=split.dim + 1),
                replace(
                    split, coordinate=Time(split.coordinate.name) if isinstance(split.coordinate, Axis) else Axis("dp")
                ),
            ):
                yield f"{where} {new}"[:120], become(replace(op, splits=put(op.splits, k, new)))


@mutation
def split_of_a_whole_dimension(program: Program) -> Found:
    """Wider than the operator's rule, as an experiment may have found it: along a dimension that was left whole."""
    fixed = {o.name: [(k, d) for k, d in enumerate(o.dims) if d.fixed and d.size > 1] for o in program.graph.operators}
    for where, op, become in _ops(program):
        for dim, d in fixed[op.operator]:
            for axis, parts in axes_of(program).items():
                if d.size % parts == 0 and all(s.coordinate != Axis(axis) for s in op.splits):
                    new = Split(Axis(axis), dim, Digit(parts, d.size // parts))
                    yield f"{where} {d.name} {axis}", become(replace(op, splits=(*op.splits, new)))


@mutation
def splits_exchanged(program: Program) -> Found:
    for where, op, become in _ops(program):
        for (j, a), (k, b) in itertools.combinations(enumerate(op.splits), 2):
            if isinstance(a, Split) and isinstance(b, Split):
                new = put(
                    put(op.splits, j, replace(a, coordinate=b.coordinate)), k, replace(b, coordinate=a.coordinate)
                )
                yield f"{where} {a.coordinate} {b.coordinate}", become(replace(op, splits=new))


@mutation
def addend_of_all_parts(program: Program) -> Found:
    for where, op, become in _ops(program):
        for k, coordinate in enumerate(op.first):
            yield f"{where} {coordinate}", become(replace(op, first=put(op.first, k)))


@mutation
def addend_of_one_part_only(program: Program) -> Found:
    for where, op, become in _ops(program):
        for split in op.splits:
            operator = next(o for o in program.graph.operators if o.name == op.operator)
            if split.coordinate not in op.first and any(o.once for o in operator.inputs):
                yield f"{where} {split.coordinate}", become(replace(op, first=(*op.first, split.coordinate)))


@mutation
def kernel_changed(program: Program) -> Found:
    for where, op, become in _ops(program):
        if not op.kernel.function:
            continue
        yield f"{where} its own call", become(replace(op, kernel=Kernel()))
        for k in range(len(op.kernel.axes)):
            yield f"{where} an axis less", become(replace(op, kernel=replace(op.kernel, axes=put(op.kernel.axes, k))))
        for told, kernel in _told_otherwise(op.kernel):
            yield f"{where} {told}", become(replace(op, kernel=kernel))


def _told_otherwise(kernel: Kernel) -> Iterator[tuple[str, Kernel]]:
    """The same function, told another place, other sizes, or nothing."""
    for field in ("offsets", "before"):
        sums = getattr(kernel, field)
        for k, offset in enumerate(sums):
            for new in (
                (),
                (replace(offset, digit=offset.digit.scaled(2)),),
                (replace(offset, coordinate=Axis("other")),),
            ):
                yield f"{field} {new}", replace(kernel, **{field: put(sums, k, *new)})
    for field in ("size", "count"):
        if (number := getattr(kernel, field)) is not None:
            for other in (None, number + 1, number // 2):
                yield f"{field} {other}", replace(kernel, **{field: other})
    for k, place in enumerate(kernel.places):
        moved = tuple(replace(offset, digit=offset.digit.scaled(2)) for offset in place.offsets) or (
            Offset(Axis("other"), Digit(1)),
        )
        for new in (replace(place, offsets=moved), replace(place, size=place.size + 1)):
            yield f"place {new}", replace(kernel, places=put(kernel.places, k, new))
    if (region := kernel.region) is not None:
        runs = region.runs
        shifted = tuple(tuple((start + 1, end + 1) for start, end in part) for part in runs)
        others = (runs[::-1], (*runs[1:], runs[0]), (runs[0],) * len(runs), shifted, runs[:-1])
        yield "nothing of the axis", replace(kernel, region=None)
        yield "another axis", replace(kernel, region=replace(region, axis=region.axis - 1))
        for other in dict.fromkeys(o for o in others if o != runs):
            yield f"at {other}", replace(kernel, region=replace(region, runs=other))
    if (queries := kernel.queries) is not None:
        yield "nothing of the queries", replace(kernel, queries=None)
        yield "the queries of another axis", replace(kernel, queries=replace(queries, coordinate=Axis("other")))
        yield "other queries", replace(kernel, queries=replace(queries, runs=queries.runs[::-1]))
    if kernel.merging:
        yield "merging nothing", replace(kernel, merging=())
        yield "merging along the ring", replace(kernel, merging=kernel.around)


@mutation
def another_version_read(program: Program) -> Found:
    for function in program.functions:
        versions: dict[str, list[Name]] = {}
        for name in function.variables():
            versions.setdefault(name.value, []).append(name)
        for s, section in enumerate(function.sections):
            for i, instr in enumerate(section.body):
                if not isinstance(instr, OpPart):
                    continue
                for k, read in enumerate(instr.reads):
                    for other in versions.get(read.value, []):
                        if other != read:
                            body = put(section.body, i, replace(instr, reads=put(instr.reads, k, other)))
                            changed = replace(function, sections=put(function.sections, s, replace(section, body=body)))
                            yield f"{function.name} {title(instr)} {other}", with_function(program, changed)


@mutation
def another_value_read(program: Program) -> Found:
    """An operand of the same shape."""
    for function in program.functions:
        known = function.variables()
        for s, section in enumerate(function.sections):
            before: list[Name] = []
            for i, instr in enumerate(section.body):
                if isinstance(instr, OpPart):
                    for k, read in enumerate(instr.reads):
                        like = [n for n in before if n.value != read.value and known[n].shape == known[read].shape]
                        if like:
                            body = put(section.body, i, replace(instr, reads=put(instr.reads, k, like[-1])))
                            changed = replace(function, sections=put(function.sections, s, replace(section, body=body)))
                            yield f"{function.name} {title(instr)} {like[-1]}", with_function(program, changed)
                    before += [v.name for v in instr.results]


@mutation
def carried_operands(program: Program) -> Found:
    for where, op, become in _ops(program):
        operator = next(o for o in program.graph.operators if o.name == op.operator)
        for k, split in enumerate(op.splits):
            if isinstance(split, Carried):
                yield (
                    f"{where} none",
                    become(replace(op, splits=put(op.splits, k, replace(split, operands=frozenset())))),
                )
                for value in {o.value for o in operator.inputs} ^ split.operands:
                    new = replace(split, operands=split.operands | {value})
                    yield f"{where} + {value}", become(replace(op, splits=put(op.splits, k, new)))
                if len(split.operands) > 1:
                    for value in sorted(split.operands):
                        new = replace(split, operands=split.operands - {value})
                        yield f"{where} - {value}", become(replace(op, splits=put(op.splits, k, new)))


@mutation
def sides_changed(program: Program) -> Found:
    for where, op, become in _ops(program):
        if op.sides is not None:
            yield f"{where} none", become(replace(op, sides=None))
            for k, side in enumerate(op.sides):
                for other in Side:
                    if other is not side:
                        yield f"{where} {k} {other.value}", become(replace(op, sides=put(op.sides, k, other)))


@mutation
def operator_dropped(program: Program) -> Found:
    for where, _op, become in _ops(program):
        yield where, become()


@mutation
def operator_doubled(program: Program) -> Found:
    for where, op, become in _ops(program):
        if not where.startswith("prologue"):
            yield where, become(op, op)
