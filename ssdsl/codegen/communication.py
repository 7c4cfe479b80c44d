"""Writes collectives and slices as Python."""

from collections.abc import Sequence

from ssdsl.codegen.expressions import GroupName
from ssdsl.ir.comm import AllReduce, AllToAll, Exchange, Step, cuts_of
from ssdsl.ir.function import Extend, Reshard, Slice
from ssdsl.plan.regions import lengths_of, parts_of


def step_text(step: Step, group: GroupName, *, in_place: bool = False, rows: Sequence[str] = ()) -> str:
    """One step: `all_gather(tp, dim=1)`, `all_to_all(sp, (1, 1), (2, 1))`; `all_reduce_(tp)` if it may overwrite.

    An all_to_all of `rows` reads their counts: `rows_to_all(ep, 2, 1, counts, counts_1)`.
    """
    mark = "_" if in_place and isinstance(step, AllReduce) else ""
    if isinstance(step, AllToAll) and rows:
        return f"rows_to_all({', '.join([group(step.axes), str(step.source.outer), str(step.target.outer), *rows])})"
    if isinstance(step, Exchange):
        words = [f"dim={step.source.dim}", *([f"outer={step.source.outer}"] if step.source.outer != 1 else [])]
        words += [f"have={step.source.at}", f"need={step.target.at}", *(["sums=True"] if step.sums else [])]
        return f"exchange({', '.join([group(step.axes), *words])})"
    match cuts_of(step):
        case (cut,) if cut.at is not None:
            places = [f"dim={cut.dim}", *([f"outer={cut.outer}"] if cut.outer != 1 else []), f"at={cut.at}"]
        case (cut,):
            places = [f"dim={cut.dim}", *([f"outer={cut.outer}"] if cut.outer != 1 else [])]
        case cuts:
            places = [f"({cut.dim}, {cut.outer})" for cut in cuts]
    return f"{step.kind}{mark}({', '.join([group(step.axes), *places])})"


def reshard_text(instr: Reshard, value: str, group: GroupName, rows: Sequence[str] = ()) -> str:
    """The right-hand side that brings a value to another layout; `rows` are the counts of its rows."""

    def texts(steps: tuple[Step, ...], may: bool, rows: Sequence[str]) -> str:
        return ", ".join(step_text(s, group, in_place=n == 0 and may, rows=rows) for n, s in enumerate(steps))

    forward = texts(instr.forward, instr.in_place[0], rows)
    backward = texts(instr.backward, instr.in_place[1], rows[::-1])
    sides = [f"{side}=[{text}]" for side, text in (("forward", forward), ("backward", backward)) if text]
    return f"reshard({', '.join([value, *sides, *(['again=True'] if instr.again else [])])})"


def slice_text(instr: Slice, value: str) -> str:
    """The right-hand side that cuts out the running part."""
    index, cut = instr.index, instr.cut
    if cut.at is not None:
        sizes = lengths_of(cut.at)
        if cut.at == parts_of(sizes):
            return f"take_sizes({value}, {cut.dim}, {cut.outer}, {sizes}, {index.name})"
        return f"take_at({value}, {cut.dim}, {cut.outer}, {cut.at}, {index.name})"
    return f"take({value}, {cut.dim}, {cut.outer}, {cut.count}, {index.name})"


def extend_text(instr: Extend, value: str, earlier: str) -> str:
    """The right-hand side that puts a part behind those before it."""
    blocks = f", outer={instr.cut.outer}" if instr.cut.outer != 1 else ""
    return f"extend({earlier}, {value}, dim={instr.cut.dim}{blocks})"
