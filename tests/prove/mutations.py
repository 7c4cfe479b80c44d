"""Mutants of a program: each one thing that a compiler could get wrong, as a named generator over the frozen IR.

`mutants(program)` yields them all. A mutant changes the numbers that training computes (or makes it hang or crash),
unless `is_harmless` says why it does not.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ssdsl.ir.action import Action, Compute, End, Free, GatherParam, Start, StartReduce, Update, Wait, WaitReduce
from ssdsl.ir.comm import AllGather, AllReduce, AllToAll, KeepFirst, Move, Narrow, ReduceScatter, Step, Transfer
from ssdsl.ir.function import (
    Backward,
    Carried,
    Concat,
    Conversion,
    First,
    Function,
    Instr,
    Kernel,
    Op,
    Reshard,
    Side,
    Slice,
    Split,
    Sum,
    Write,
    results_of,
)
from ssdsl.ir.layout import PARTIAL, REPLICATE, Cut, Shard
from ssdsl.ir.param import AllReduceGrads, ChunkGrads, FlatParam, ReduceScatterGrads, SumTiedGrads, Zero
from ssdsl.ir.program import Program
from ssdsl.ir.value import Axis, Name, Time, Var
from ssdsl.plan.plan import Phase


@dataclass(frozen=True)
class Mutant:
    """A changed program: the kind of change, and where."""

    kind: str
    where: str
    program: Program

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}"


Found = Iterator[tuple[str, Program]]
Mutation = Callable[[Program], Found]
MUTATIONS: dict[str, Mutation] = {}


def mutation(make: Mutation) -> Mutation:
    MUTATIONS[make.__name__] = make
    return make


def mutants(program: Program, kinds: tuple[str, ...] = (), most: int | None = None) -> Iterator[Mutant]:
    """All mutants of these kinds (all by default), or of each kind `most`, spread evenly."""
    for kind in kinds or MUTATIONS:
        found = MUTATIONS[kind](program)
        chosen = list(found) if most is not None else found
        if most is not None and isinstance(chosen, list) and len(chosen) > most:
            chosen = [chosen[k * len(chosen) // most] for k in range(most)]
        for where, mutant in chosen:
            yield Mutant(kind, where, mutant)


# -- replacing deep inside ---------------------------------------------------------------------------------------------


def put(items: tuple[Any, ...], k: int, *new: Any) -> tuple[Any, ...]:
    """Some items in the place of one."""
    return (*items[:k], *new, *items[k + 1 :])


def with_function(program: Program, function: Function) -> Program:
    return replace(program, functions=put(program.functions, function.number, function))


def instructions(program: Program) -> Iterator[tuple[str, Instr, Callable[..., Program]]]:
    """Every instruction, and the program with others in its place."""
    for function in program.functions:
        for s, section in enumerate(function.sections):
            for k, instr in enumerate(section.body):

                def become(*new: Instr, f: Function = function, s: int = s, k: int = k) -> Program:
                    body = put(f.sections[s].body, k, *new)
                    return with_function(
                        program, replace(f, sections=put(f.sections, s, replace(f.sections[s], body=body)))
                    )

                yield f"{function.name} {_title(instr)}", instr, become
    for p, prologue in enumerate(program.prologues):
        for k, instr in enumerate(prologue.body):

            def become_there(*new: Instr, p: int = p, k: int = k) -> Program:
                changed = replace(program.prologues[p], body=put(program.prologues[p].body, k, *new))
                return replace(program, prologues=put(program.prologues, p, changed))

            yield f"prologue {p} {_title(instr)}", instr, become_there


def _title(instr: Instr) -> str:
    match instr:
        case Op():
            return instr.operator
        case Write():
            return f"Write {instr.buffer}"
        case _:
            return f"{type(instr).__name__} {instr.result.name}"


def axes_of(program: Program) -> dict[str, int]:
    return {a: n for mesh in program.plan.meshes for a, n in mesh.axes if n > 1}


def parts_in(program: Program) -> Iterator[tuple[str, Function, Callable[[Function], Program]]]:
    for function in program.functions:
        yield function.name, function, lambda new: with_function(program, new)


# -- communication in functions ----------------------------------------------------------------------------------------


def _directions(program: Program) -> Iterator[tuple[str, Reshard, str, Callable[[tuple[Step, ...]], Program]]]:
    for where, instr, become in instructions(program):
        if isinstance(instr, Reshard):
            for direction in ("forward", "backward"):
                if direction == "backward" and instr.result.gradient is None:
                    continue

                def changed(
                    steps: tuple[Step, ...], instr: Reshard = instr, d: str = direction, become: Any = become
                ) -> Program:
                    return become(replace(instr, **{d: steps}))

                yield f"{where} {direction}", instr, direction, changed


@mutation
def write_dropped(program: Program) -> Found:
    """A buffer keeps its old value."""
    for where, instr, become in instructions(program):
        if isinstance(instr, Write):
            yield where, become()


@mutation
def step_dropped(program: Program) -> Found:
    for where, instr, direction, become in _directions(program):
        steps = getattr(instr, direction)
        for k, step in enumerate(steps):
            yield f"{where} {step}", become(put(steps, k))


@mutation
def step_doubled(program: Program) -> Found:
    for where, instr, direction, become in _directions(program):
        steps = getattr(instr, direction)
        for k, step in enumerate(steps):
            yield f"{where} {step}", become(put(steps, k, step, step))


@mutation
def step_of_another_group(program: Program) -> Found:
    for where, instr, direction, become in _directions(program):
        steps = getattr(instr, direction)
        for k, step in enumerate(steps):
            for axis in axes_of(program):
                if (axis,) != step.axes:
                    yield f"{where} {step} over {axis}", become(put(steps, k, replace(step, axes=(axis,))))
            if len(step.axes) > 1:
                yield f"{where} {step} one axis less", become(put(steps, k, replace(step, axes=step.axes[1:])))


@mutation
def step_of_another_kind(program: Program) -> Found:
    for where, instr, direction, become in _directions(program):
        steps = getattr(instr, direction)
        for k, step in enumerate(steps):
            for other in _other_kinds(step):
                yield f"{where} {type(step).__name__} to {type(other).__name__}", become(put(steps, k, other))


def _other_kinds(step: Step) -> list[Step]:
    whole = Cut(0, 1, 2)
    match step:
        case AllReduce():
            return [KeepFirst(step.axes, step.elements), ReduceScatter(step.axes, step.elements, whole)]
        case KeepFirst():
            return [AllReduce(step.axes, step.elements)]
        case ReduceScatter():
            return [Narrow(step.axes, step.elements, step.target), AllReduce(step.axes, step.elements)]
        case Narrow():
            return [ReduceScatter(step.axes, step.elements, step.target), AllReduce(step.axes, step.elements)]
        case AllGather():
            return [ReduceScatter(step.axes, step.elements, step.source), AllReduce(step.axes, step.elements)]
        case AllToAll():
            return [AllGather(step.axes, step.elements, step.source), Narrow(step.axes, step.elements, step.target)]


@mutation
def step_added(program: Program) -> Found:
    for where, instr, direction, become in _directions(program):
        steps = getattr(instr, direction)
        for axis in axes_of(program):
            yield f"{where} + all_reduce {axis}", become((*steps, AllReduce((axis,), instr.result.elements)))


@mutation
def step_to_the_other_direction(program: Program) -> Found:
    for where, instr, become in instructions(program):
        if isinstance(instr, Reshard) and instr.result.gradient is not None and instr.forward != instr.backward:
            yield where, become(replace(instr, forward=instr.backward, backward=instr.forward))


@mutation
def steps_in_another_order(program: Program) -> Found:
    for where, instr, direction, become in _directions(program):
        steps = getattr(instr, direction)
        if len(steps) > 1:
            yield where, become(steps[::-1])


def _cuts(cut: Cut) -> list[Cut]:
    changed = [replace(cut, dim=cut.dim + 1), replace(cut, outer=cut.outer * 2), replace(cut, count=cut.count * 2)]
    changed += [replace(cut, dim=cut.dim - 1)] if cut.dim else []
    changed += [replace(cut, outer=cut.outer // 2)] if cut.outer % 2 == 0 else []
    changed += [replace(cut, outer=1)] if cut.outer > 2 else []
    return changed


@mutation
def step_of_another_digit(program: Program) -> Found:
    for where, instr, direction, become in _directions(program):
        steps = getattr(instr, direction)
        for k, step in enumerate(steps):
            for end in ("source", "target"):
                for cut in _cuts(getattr(step, end)) if hasattr(step, end) else []:
                    yield f"{where} {end} {cut}", become(put(steps, k, replace(step, **{end: cut})))
            if isinstance(step, AllToAll):
                yield (
                    f"{where} ends swapped",
                    become(put(steps, k, replace(step, source=step.target, target=step.source))),
                )


@mutation
def step_of_another_size(program: Program) -> Found:
    for where, instr, direction, become in _directions(program):
        steps = getattr(instr, direction)
        for k, step in enumerate(steps):
            yield f"{where} {step}", become(put(steps, k, replace(step, elements=step.elements * 2)))


@mutation
def reshard_dropped(program: Program) -> Found:
    """Its readers read the value as it was before."""
    for function in program.functions:
        for instr in function.body():
            if isinstance(instr, Conversion):
                old, new = instr.result.name, instr.source
                sections = tuple(
                    replace(s, body=tuple(_renamed(i, old, new) for i in s.body if i is not instr))
                    for s in function.sections
                )
                outputs = tuple(replace(o, name=new) if o.name == old else o for o in function.outputs)
                changed = replace(function, sections=sections, outputs=outputs)
                yield f"{function.name} {_title(instr)}", with_function(program, changed)


def _renamed(instr: Instr, old: Name, new: Name) -> Instr:
    if isinstance(instr, Op):
        return replace(instr, reads=tuple(new if r == old else r for r in instr.reads))
    return replace(instr, source=new) if instr.source == old else instr


@mutation
def instruction_moved_behind_its_reader(program: Program) -> Found:
    for function in program.functions:
        for s, section in enumerate(function.sections):
            for k in range(len(section.body) - 1):
                first, then = section.body[k : k + 2]
                made = {v.name for v in results_of(first)}
                if made.intersection(then.reads if isinstance(then, Op) else (then.source,)):
                    body = (*section.body[:k], then, first, *section.body[k + 2 :])
                    changed = replace(function, sections=put(function.sections, s, replace(section, body=body)))
                    yield f"{function.name} {_title(first)}", with_function(program, changed)


@mutation
def overwritten(program: Program) -> Found:
    for where, instr, become in instructions(program):
        if isinstance(instr, Reshard) and not where.startswith("prologue"):
            for k in (0, 1):
                steps = (instr.forward, instr.backward)[k]
                if not instr.in_place[k] and steps:
                    flags = (True, instr.in_place[1]) if k == 0 else (instr.in_place[0], True)
                    yield f"{where} {'value' if k == 0 else 'gradient'}", become(replace(instr, in_place=flags))


@mutation
def slice_of_another_digit(program: Program) -> Found:
    for where, instr, become in instructions(program):
        if isinstance(instr, Slice):
            for cut in _cuts(instr.cut):
                yield f"{where} {cut}", become(replace(instr, cut=cut))
            yield f"{where} index", become(replace(instr, index=replace(instr.index, name="other")))
            yield f"{where} parts", become(replace(instr, index=replace(instr.index, parts=instr.index.parts * 2)))


@mutation
def first_of_another_index(program: Program) -> Found:
    """Every part has the whole value, or the first part of something else."""
    for where, instr, become in instructions(program):
        if isinstance(instr, First):
            yield f"{where} index", become(replace(instr, index=replace(instr.index, name="other")))
            yield f"{where} every part", become(Reshard(instr.source, instr.result, (), ()))


# -- operators ---------------------------------------------------------------------------------------------------------


def _ops(program: Program) -> Iterator[tuple[str, Op, Callable[..., Program]]]:
    for where, instr, become in instructions(program):
        if isinstance(instr, Op):
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
                replace(split, stride=split.stride * 2),
                replace(split, parts=split.parts * 2),
                replace(split, dim=split.dim + 1),
                replace(
                    split, coordinate=Time(split.coordinate.name) if isinstance(split.coordinate, Axis) else Axis("dp")
                ),
            ):
                yield f"{where} {new}"[:120], become(replace(op, splits=put(op.splits, k, new)))


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
        for k, offset in enumerate(op.kernel.offsets):
            for new in ((), (replace(offset, stride=offset.stride * 2),), (replace(offset, coordinate=Axis("other")),)):
                offsets = put(op.kernel.offsets, k, *new)
                yield f"{where} offset {new}", become(replace(op, kernel=replace(op.kernel, offsets=offsets)))


@mutation
def another_version_read(program: Program) -> Found:
    for function in program.functions:
        versions: dict[str, list[Name]] = {}
        for name in function.variables():
            versions.setdefault(name.value, []).append(name)
        for s, section in enumerate(function.sections):
            for i, instr in enumerate(section.body):
                if not isinstance(instr, Op):
                    continue
                for k, read in enumerate(instr.reads):
                    for other in versions.get(read.value, []):
                        if other != read:
                            body = put(section.body, i, replace(instr, reads=put(instr.reads, k, other)))
                            changed = replace(function, sections=put(function.sections, s, replace(section, body=body)))
                            yield f"{function.name} {_title(instr)} {other}", with_function(program, changed)


@mutation
def another_value_read(program: Program) -> Found:
    """An operand of the same shape."""
    for function in program.functions:
        known = function.variables()
        for s, section in enumerate(function.sections):
            before: list[Name] = []
            for i, instr in enumerate(section.body):
                if isinstance(instr, Op):
                    for k, read in enumerate(instr.reads):
                        like = [n for n in before if n.value != read.value and known[n].shape == known[read].shape]
                        if like:
                            body = put(section.body, i, replace(instr, reads=put(instr.reads, k, like[-1])))
                            changed = replace(function, sections=put(function.sections, s, replace(section, body=body)))
                            yield f"{function.name} {_title(instr)} {like[-1]}", with_function(program, changed)
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


# -- types that are written --------------------------------------------------------------------------------------------


@mutation
def annotation_changed(program: Program) -> Found:
    for where, instr, become in instructions(program):
        results = results_of(instr)
        for k, var in enumerate(results):
            for what, new in _other_types(var, program):
                changed = (
                    replace(instr, results=put(results, k, new))
                    if isinstance(instr, Op)
                    else replace(instr, result=new)
                )
                yield f"{where} {var.name} {what}", become(changed)


def _other_types(var: Var, program: Program) -> Iterator[tuple[str, Var]]:
    type_ = var.type
    for k, place in enumerate(type_.layout.places):
        for other in (REPLICATE, PARTIAL, Shard(0, 1, 2)):
            if place != other:
                yield "type", replace(var, type=replace(type_, layout=type_.layout.replacing(k, other)))
                break
    if type_.time:
        yield "time", replace(var, type=replace(type_, time=type_.time[1:]))
    if var.gradient is not None:
        yield "no gradient", replace(var, gradient=None)
        for k, place in enumerate(var.gradient.layout.places):
            other = PARTIAL if place is not PARTIAL else REPLICATE
            yield (
                "gradient",
                replace(var, gradient=replace(var.gradient, layout=var.gradient.layout.replacing(k, other))),
            )


# -- between functions -------------------------------------------------------------------------------------------------


def _inputs(program: Program) -> Iterator[tuple[str, Function, int, Callable[..., Program]]]:
    for function in program.functions:
        for k in range(len(function.inputs)):

            def become(*new: Any, f: Function = function, k: int = k) -> Program:
                return with_function(program, replace(f, inputs=put(f.inputs, k, *new)))

            yield f"{function.name} {function.inputs[k].var.name}", function, k, become


@mutation
def merge_dropped(program: Program) -> Found:
    for where, function, k, become in _inputs(program):
        given = function.inputs[k]
        for j, merge in enumerate(given.merges):
            yield f"{where} {merge}", become(replace(given, merges=put(given.merges, j)))


@mutation
def merge_changed(program: Program) -> Found:
    for where, function, k, become in _inputs(program):
        given = function.inputs[k]
        for j, merge in enumerate(given.merges):
            if isinstance(merge, Concat):
                for cut in _cuts(merge.cut):
                    yield f"{where} {cut}", become(replace(given, merges=put(given.merges, j, replace(merge, cut=cut))))
                yield f"{where} sum", become(replace(given, merges=put(given.merges, j, Sum(merge.index))))
            else:
                yield (
                    f"{where} concat",
                    become(replace(given, merges=put(given.merges, j, Concat(merge.index, Cut(0, 1, 2))))),
                )
            fewer = replace(merge, index=replace(merge.index, parts=merge.index.parts - 1))
            yield f"{where} fewer parts", become(replace(given, merges=put(given.merges, j, fewer)))


@mutation
def merge_added(program: Program) -> Found:
    for where, function, k, become in _inputs(program):
        given = function.inputs[k]
        for index in given.time:
            yield f"{where} sum {index.name}", become(replace(given, merges=(*given.merges, Sum(index))))
            yield (
                f"{where} concat {index.name}",
                become(replace(given, merges=(*given.merges, Concat(index, Cut(0, 1, index.parts))))),
            )


@mutation
def input_changed(program: Program) -> Found:
    for where, function, k, become in _inputs(program):
        given = function.inputs[k]
        yield f"{where} gradient flag", become(replace(given, gradient=not given.gradient))
        yield f"{where} slot", become(replace(given, slot=given.slot + "?"))
        yield f"{where} dropped", become()
        for other in program.functions:
            if other.number != given.producer:
                yield f"{where} of {other.name}", become(replace(given, producer=other.number))
                break


@mutation
def output_changed(program: Program) -> Found:
    for name, function, become in parts_in(program):
        for k, output in enumerate(function.outputs):
            read = any(i.slot == output.slot for f in program.functions for i in f.inputs)
            read |= any(isinstance(m, Transfer) and m.source_slot == output.slot for m in program.messages)
            if read or k == function.loss:
                yield f"{name} {output.slot} dropped", become(replace(function, outputs=put(function.outputs, k)))
            flipped = replace(output, gradient=not output.gradient)
            yield f"{name} {output.slot} gradient", become(replace(function, outputs=put(function.outputs, k, flipped)))
            late = replace(output, wgrad_only=not output.wgrad_only)
            yield f"{name} {output.slot} wgrad_only", become(replace(function, outputs=put(function.outputs, k, late)))


@mutation
def backward_of_another_kind(program: Program) -> Found:
    for name, function, become in parts_in(program):
        for kind in Backward:
            if kind is not function.backward:
                yield f"{name} {kind.value}", become(replace(function, backward=kind))


@mutation
def gather_of_weights_dropped(program: Program) -> Found:
    for name, function, become in parts_in(program):
        for s, section in enumerate(function.sections):
            for k in range(len(section.gathers)):
                changed = replace(section, gathers=put(section.gathers, k))
                yield f"{name} {section.layer}", become(replace(function, sections=put(function.sections, s, changed)))


@mutation
def prepared_of_another_name(program: Program) -> Found:
    for name, function, become in parts_in(program):
        for j, k in itertools.permutations(range(len(function.prepared)), 2):
            changed = replace(function.prepared[j], source=function.prepared[k].source)
            yield (
                f"{name} {function.prepared[j].source}",
                become(replace(function, prepared=put(function.prepared, j, changed))),
            )


# -- transfers ---------------------------------------------------------------------------------------------------------


def _moves(program: Program) -> Iterator[tuple[str, Move, Callable[[Move | None], Program]]]:
    for n, message in enumerate(program.messages):
        if not isinstance(message, Transfer):
            continue
        for end in ("forward", "backward"):
            if (move := getattr(message, end)) is not None:

                def become(new: Move | None, n: int = n, message: Transfer = message, end: str = end) -> Program:
                    return replace(program, messages=put(program.messages, n, replace(message, **{end: new})))

                yield f"transfer {n} {end}", move, become


@mutation
def piece_dropped(program: Program) -> Found:
    for where, move, become in _moves(program):
        for k in range(len(move.pieces)):
            yield f"{where} {k}", become(replace(move, pieces=put(move.pieces, k)))


@mutation
def piece_doubled(program: Program) -> Found:
    for where, move, become in _moves(program):
        for k, piece in enumerate(move.pieces):
            yield f"{where} {k}", become(replace(move, pieces=put(move.pieces, k, piece, piece)))


@mutation
def pieces_exchanged(program: Program) -> Found:
    for where, move, become in _moves(program):
        for (j, a), (k, b) in itertools.combinations(enumerate(move.pieces), 2):
            if a.source != b.source:
                new = put(put(move.pieces, j, replace(a, source=b.source)), k, replace(b, source=a.source))
                yield f"{where} sources {j} {k}", become(replace(move, pieces=new))
            if a.target != b.target:
                new = put(put(move.pieces, j, replace(a, target=b.target)), k, replace(b, target=a.target))
                yield f"{where} targets {j} {k}", become(replace(move, pieces=new))
            if a.source_box != b.source_box:
                new = put(
                    put(move.pieces, j, replace(a, source_box=b.source_box)), k, replace(b, source_box=a.source_box)
                )
                yield f"{where} boxes {j} {k}", become(replace(move, pieces=new))


@mutation
def box_shifted(program: Program) -> Found:
    for where, move, become in _moves(program):
        for k, piece in enumerate(move.pieces):
            for end in ("source_box", "target_box"):
                for f, (start, n) in enumerate(getattr(piece, end)):
                    for new in ((start + 1, n), (start, n - 1)):
                        box = put(getattr(piece, end), f, new)
                        yield (
                            f"{where} {k} {end} {f} {new}",
                            become(replace(move, pieces=put(move.pieces, k, replace(piece, **{end: box})))),
                        )


@mutation
def aligned_changed(program: Program) -> Found:
    for where, move, become in _moves(program):
        for k in range(len(move.aligned)):
            yield f"{where} - {move.aligned[k]}", become(replace(move, aligned=put(move.aligned, k)))
        for axis in axes_of(program):
            if axis not in move.aligned:
                yield f"{where} + {axis}", become(replace(move, aligned=(*move.aligned, axis)))


@mutation
def gradient_not_sent(program: Program) -> Found:
    for where, _, become in _moves(program):
        if where.endswith("backward"):
            yield where, become(None)


# -- parameters --------------------------------------------------------------------------------------------------------


@mutation
def param_partial(program: Program) -> Found:
    for k, param in enumerate(program.params):
        if not param.trained:
            continue
        for axis, _ in param.submesh.axes:
            partial = tuple(a for a in param.partial if a != axis) if axis in param.partial else (*param.partial, axis)
            yield (
                f"{param.weight} {axis}",
                replace(program, params=put(program.params, k, replace(param, partial=partial))),
            )


@mutation
def param_layout(program: Program) -> Found:
    for k, param in enumerate(program.params):
        for at, place in enumerate(param.layout.places):
            other = REPLICATE if isinstance(place, Shard) else Shard(0, 1, param.submesh.axes[at][1])
            changed = replace(param, layout=param.layout.replacing(at, other))
            yield f"{param.weight} {at}", replace(program, params=put(program.params, k, changed))


@mutation
def param_trained(program: Program) -> Found:
    for k, param in enumerate(program.params):
        yield param.weight, replace(program, params=put(program.params, k, replace(param, trained=not param.trained)))


@mutation
def param_dropped(program: Program) -> Found:
    for k, param in enumerate(program.params):
        yield param.weight, replace(program, params=put(program.params, k))


def _flats(program: Program) -> Iterator[tuple[str, FlatParam, Callable[..., Program]]]:
    for k, flat in enumerate(program.flats):
        yield f"flat {k}", flat, lambda *new, k=k: replace(program, flats=put(program.flats, k, *new))


@mutation
def completion_dropped(program: Program) -> Found:
    for where, flat, become in _flats(program):
        for k, step in enumerate(flat.completion):
            yield f"{where} {step}"[:90], become(replace(flat, completion=put(flat.completion, k)))


@mutation
def completion_doubled(program: Program) -> Found:
    for where, flat, become in _flats(program):
        for k, step in enumerate(flat.completion):
            yield f"{where} {step}"[:90], become(replace(flat, completion=put(flat.completion, k, step, step)))


@mutation
def completion_added(program: Program) -> Found:
    for where, flat, become in _flats(program):
        for axis, _ in flat.submesh.axes:
            yield f"{where} {axis}", become(replace(flat, completion=(*flat.completion, AllReduceGrads((axis,)))))


@mutation
def completion_changed(program: Program) -> Found:
    for where, flat, become in _flats(program):
        for k, step in enumerate(flat.completion):
            if isinstance(step, SumTiedGrads):
                for j in range(len(step.submeshes)):
                    fewer = SumTiedGrads(put(step.submeshes, j))
                    yield f"{where} a home less", become(replace(flat, completion=put(flat.completion, k, fewer)))
                continue
            others: list[Any] = [type(step)(step.axes[1:])] if len(step.axes) > 1 else []
            others += [type(step)((a,)) for a, _ in flat.submesh.axes if (a,) != step.axes]
            others += [ChunkGrads(step.axes)] if not isinstance(step, ChunkGrads) else [ReduceScatterGrads(step.axes)]
            for other in others:
                yield f"{where} {other}", become(replace(flat, completion=put(flat.completion, k, other)))


@mutation
def completion_in_another_order(program: Program) -> Found:
    for where, flat, become in _flats(program):
        if len(flat.completion) > 1:
            yield where, become(replace(flat, completion=flat.completion[::-1]))


@mutation
def flat_weights(program: Program) -> Found:
    for where, flat, become in _flats(program):
        for k in (0, len(flat.weights) - 1):
            yield f"{where} - {flat.weights[k]}", become(replace(flat, weights=put(flat.weights, k)))
        yield f"{where} twice", become(replace(flat, weights=(*flat.weights, flat.weights[0])))


@mutation
def flat_zero(program: Program) -> Found:
    for where, flat, become in _flats(program):
        for zero in Zero:
            if zero is not flat.zero:
                yield f"{where} {zero.value}", become(replace(flat, zero=zero))
        for axis, _ in flat.submesh.axes:
            axes = (
                tuple(a for a in flat.shard_axes if a != axis) if axis in flat.shard_axes else (*flat.shard_axes, axis)
            )
            yield f"{where} over {axes}", become(replace(flat, shard_axes=axes))


# -- roles -------------------------------------------------------------------------------------------------------------


def _actions(
    program: Program,
) -> Iterator[tuple[str, int, tuple[Action, ...], int, Callable[[tuple[Action, ...]], Program]]]:
    for n, role in enumerate(program.roles):

        def become(actions: tuple[Action, ...], n: int = n) -> Program:
            return replace(program, roles=put(program.roles, n, replace(program.roles[n], actions=actions)))

        for k, action in enumerate(role.actions):
            yield f"{role.name} {k} {action}", n, role.actions, k, become


def moved(actions: tuple[Action, ...], k: int, to: int) -> tuple[Action, ...]:
    """Action number k moved in front of what is number `to`."""
    rest = [*actions[:k], *actions[k + 1 :]]
    rest.insert(to if to <= k else to - 1, actions[k])
    return tuple(rest)


@mutation
def action_dropped(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        yield where, become(put(actions, k))


@mutation
def action_doubled(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        yield where, become(put(actions, k, actions[k], actions[k]))


@mutation
def wait_forgotten_until_later(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        if isinstance(actions[k], Wait):
            to = next((j for j in range(k, len(actions)) if isinstance(actions[j], Compute)), None)
            if to is not None:
                yield where, become(moved(actions, k, to + 1))


@mutation
def sent_too_early(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        action = actions[k]
        if (
            isinstance(action, Start)
            and action.end is not End.RECEIVE
            and isinstance(program.messages[action.message], Transfer)
        ):
            yield where, become(moved(actions, k, 0))


@mutation
def received_too_late(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        action = actions[k]
        if isinstance(action, Start) and action.end is End.RECEIVE:
            wait = Wait(action.message, action.at, action.gradient)
            if wait in actions:
                yield where, become(moved(actions, k, actions.index(wait) + 1))


@mutation
def freed_too_early(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        if isinstance(actions[k], Free):
            to = max(j for j in range(k) if isinstance(actions[j], Compute | Start))
            yield where, become(moved(actions, k, to))


@mutation
def updated_too_early(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        if isinstance(actions[k], Update):
            yield f"{where} first", become(moved(actions, k, 0))
            if any(isinstance(a, Compute) for a in actions[:k]):
                last = max(j for j in range(k) if isinstance(actions[j], Compute | WaitReduce))
                yield f"{where} before the last", become(moved(actions, k, last))


@mutation
def gathered_too_early(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        if isinstance(actions[k], GatherParam):
            yield where, become(moved(actions, k, actions.index(Update())))


@mutation
def reduced_too_early(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        action = actions[k]
        if not isinstance(action, StartReduce):
            continue
        weights = set(program.flats[action.flat].weights)
        adding = [
            j
            for j, a in enumerate(actions[:k])
            if isinstance(a, Compute)
            and a.phase in (Phase.BACKWARD, Phase.WGRAD)
            and weights & {p.var.name.value for p in program.functions[a.function].parameters}
        ]
        if adding:
            yield where, become(moved(actions, k, adding[-1]))


@mutation
def task_of_another_part(program: Program) -> Found:
    """A micro-batch twice, and another never; for messages too."""
    for where, _, actions, k, become in _actions(program):
        action = actions[k]
        if isinstance(action, Compute | Start | Wait | Free):
            for j, c in enumerate(action.at):
                yield where, become(put(actions, k, replace(action, at=put(action.at, j, c + 1 if c == 0 else c - 1))))


@mutation
def task_of_another_phase(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        action = actions[k]
        if isinstance(action, Compute):
            for phase in Phase:
                if phase is not action.phase:
                    yield f"{where} {phase.value}", become(put(actions, k, replace(action, phase=phase)))


@mutation
def task_of_another_function(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        action = actions[k]
        if isinstance(action, Compute) and len(program.functions) > 1:
            other = (action.function + 1) % len(program.functions)
            yield where, become(put(actions, k, replace(action, function=other)))


@mutation
def backward_before_forward(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        action = actions[k]
        if isinstance(action, Compute) and action.phase is not Phase.FORWARD:
            before = Phase.DGRAD if action.phase is Phase.WGRAD else Phase.FORWARD
            first = actions.index(replace(action, phase=before)) if replace(action, phase=before) in actions else None
            if first is not None:
                yield where, become(moved(actions, k, first))


@mutation
def forward_before_its_input(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        action = actions[k]
        is_forward = isinstance(action, Compute) and action.phase is Phase.FORWARD
        if k and is_forward and program.functions[action.function].inputs:
            yield where, become(moved(actions, k, 0))


@mutation
def message_changed(program: Program) -> Found:
    for where, _, actions, k, become in _actions(program):
        action = actions[k]
        if isinstance(action, Start):
            for end in End:
                if end is not action.end:
                    yield f"{where} {end.value}", become(put(actions, k, replace(action, end=end)))
        if isinstance(action, Start | Wait):
            yield f"{where} other way", become(put(actions, k, replace(action, gradient=not action.gradient)))
            yield f"{where} other message", become(put(actions, k, replace(action, message=action.message + 1)))


@mutation
def posts_exchanged(program: Program) -> Found:
    """Two messages between the same roles, posted in another order at one end."""
    for where, _n, actions, k, become in _actions(program):
        action = actions[k]
        if not isinstance(action, Start):
            continue
        later = next(
            (
                j
                for j in range(k + 1, len(actions))
                if isinstance(b := actions[j], Start) and b.gradient is action.gradient
            ),
            None,
        )
        if later is not None:
            other = actions[later]
            yield where, become(put(put(actions, k, other), later, action))


# -- the loss ----------------------------------------------------------------------------------------------------------


@mutation
def loss_changed(program: Program) -> Found:
    loss = program.loss
    function = program.functions[loss.function]
    for axis, _ in function.submesh.axes:
        axes = tuple(a for a in loss.axes if a != axis) if axis in loss.axes else (*loss.axes, axis)
        yield f"over {axes}", replace(program, loss=replace(loss, axes=axes))
    yield "no function's output", with_function(program, replace(function, loss=None))
    for output in function.outputs:
        if output.name != loss.name:
            yield f"{output.name}", replace(program, loss=replace(loss, name=output.name))
            break


@mutation
def constant_dropped(program: Program) -> Found:
    for p, prologue in enumerate(program.prologues):
        for k, name in enumerate(prologue.constants):
            changed = replace(prologue, constants=put(prologue.constants, k))
            yield f"prologue {p} {name}", replace(program, prologues=put(program.prologues, p, changed))


@mutation
def function_dropped(program: Program) -> Found:
    """Its operators run nowhere, though its tasks still do."""
    for name, function, become in parts_in(program):
        yield name, become(replace(function, sections=()))


@mutation
def role_dropped(program: Program) -> Found:
    for k, role in enumerate(program.roles):
        if role.actions:
            yield role.name, replace(program, roles=put(program.roles, k))


@mutation
def role_without_actions(program: Program) -> Found:
    for k, role in enumerate(program.roles):
        if role.actions:
            yield role.name, replace(program, roles=put(program.roles, k, replace(role, actions=())))
