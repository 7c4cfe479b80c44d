"""Checks rows that are sent to their experts: the counts that a conversion reads are those of its rows, at both ends.

The graph says which rows are sorted by experts: `dispatch(rows, experts, own)` makes them, with slots of their own
class. Only `count_rows` of the same experts gives the number of these rows.

Worked example: 4 experts, and the batch and the experts over the two devices of `ep`. Each device has 2 samples of 4
rows of 8 features. It sorts these 8 rows by expert, [experts 4 · batch 2 · slots 1], and counts them, [experts 4 ·
batch 2]. Numbers travel first:

    %n@1    = all_to_all<ep>(8, dim 0 for dim 0 in 2) %n : i64[8] at (experts: ep)
    %rows@1 = all_to_all<ep>(64, dim 0 for dim 0 in 2) of rows by (%n, %n@1) %rows : f32[8, 8] at (experts: ep)

The second may read `%n` and `%n@1` alone: they are the numbers of these very rows, cut as the rows are before
and after. Numbers of rows of other experts, or the same ones at both ends, are refuted.
"""

from collections.abc import Mapping

from ssdsl.ir.comm import AllToAll, Step, cuts_of
from ssdsl.ir.function import Conversion, Split
from ssdsl.ir.value import Name
from ssdsl.model.graph import Graph, Operator
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.types.local import Local, LocalDigit

AT_EXPERTS = {"ssdsl::dispatch": 1, "ssdsl::combine": 1, "ssdsl::count_rows": 0}  # with the operand of the experts


def in_both_orders(operator: Operator, split: Split) -> tuple[LocalDigit, LocalDigit]:
    """The digits of the two dimensions of a split, of which one numbers parts of the rows at the experts, and the other
    has the positions of the rows in their places.

    Rows [batch 8, seq 16, top 2] that are sorted by expert as [experts 4, batch 8, part 2, slots 4] are the rows of two
    halves of `seq`: digit 1 of the parts is digit 8 of `seq`. Raises Wrong unless the axes are alike in front of both,
    and all parts have as many rows.
    """
    places = operator.inputs[AT_EXPERTS[operator.target]].axes[0]
    sorted_ = operator.inputs[0] if operator.target == "ssdsl::combine" else operator.outputs[0]
    _, *kept = sorted_.axes[0]
    number, here = split.dims if split.dim in kept else split.dims[::-1]
    outer = kept.index(number) if number in kept else len(kept)
    parts, positions = operator.dims[number].size, operator.dims[here].size
    each, rest = divmod(positions, parts)
    if places[: outer + 1] != (*kept[:outer], here) or rest:
        raise Wrong(Rule.TWO_SPLITS, "parts of the rows behind equal dimensions in both orders", split)
    if split.digit.at is not None:
        of_rows, of_parts = LocalDigit(0, 1, split.digit.parts, split.digit.at), LocalDigit(0, 1, split.digit.parts)
        if {*of_rows.counts} != {each} or split.digit.parts != parts:
            raise Wrong(Rule.TWO_SPLITS, f"{parts} parts of {each} rows each", split)
    else:
        stride = split.digit.stride if split.dim == number else split.digit.stride // each
        of_rows, of_parts = LocalDigit(0, stride * each, split.digit.parts), LocalDigit(0, stride, split.digit.parts)
        if split.dim == here and of_rows.stride != split.digit.stride:
            raise Wrong(Rule.TWO_SPLITS, f"a digit of parts of {each} rows", split)
    return (of_parts, of_rows) if split.dim == number else (of_rows, of_parts)


def check_apart(graph: Graph, value: str, dim: int = 0) -> None:
    """Raises Wrong if axis `dim` of a value has rows with their experts. Callers ask before they cut or join that axis,
    or send the value to a function on other devices: the rows' places are known only at run time."""
    if any(cls < 0 for axis in graph.values[value].factors[dim : dim + 1] for cls in axis):
        raise Wrong(Rule.STEP, "rows that stay with their experts", f"axis {dim} in parts")


def check_rows(graph: Graph, instr: Conversion, types: Mapping[Name, Local], result: Local) -> None:
    """Raises Wrong unless a conversion that takes rows to other devices reads their counts, before and after.

    `types` are those of the function's values, `result` is the type of the conversion's result.
    """
    value = graph.values[instr.source.value]
    slots = {cls for axis in value.factors[:1] for cls in axis if cls < 0}
    moves = [s for steps in (instr.forward, instr.backward) for s in steps if slots and _cuts_rows(s)]
    for step in moves:
        if not isinstance(step, AllToAll) or any(cut.dim for cut in cuts_of(step)):
            raise Wrong(Rule.STEP, "an all_to_all of rows whose number is known when they travel", step)
    if not moves:
        if instr.also and not any(step.in_time for step in instr.forward):
            raise Wrong(Rule.STEP, "no numbers of rows where none travel", instr.also)
        return
    if any(sum(map(_cuts_rows, steps)) > 1 for steps in (instr.forward, instr.backward)):
        raise Wrong(Rule.STEP, "rows that travel once, as their numbers are known at both ends alone", moves)
    counts = _counts(graph, slots)
    if len(instr.also) != 2 or {r.value for r in instr.also} != counts:
        raise Wrong(Rule.STEP, f"numbers of these rows: {', '.join(sorted(counts))}", instr.also)
    # `also` are the counts before and after: each must be cut as its rows are, along the axis of rows
    for name, rows in zip(instr.also, (types[instr.source], result), strict=True):
        wanted = Local(frozenset((c, d) for c, d in rows.digits if d.factor < len(value.factors[0])))
        if types.get(name) != wanted:
            raise Wrong(Rule.STEP, f"numbers of the rows that are there: {wanted}", types.get(name, name))


def _cuts_rows(step: Step) -> bool:
    return any(cut.dim == 0 for cut in cuts_of(step))


def _counts(graph: Graph, slots: set[int]) -> set[str]:
    """The values that count the rows with these slots."""
    experts = {
        o.inputs[1].value
        for o in graph.operators
        if o.target == "ssdsl::dispatch"
        and slots <= {cls for axis in graph.values[o.outputs[0].value].factors for cls in axis}
    }
    counting = (o for o in graph.operators if o.target == "ssdsl::count_rows")
    return {o.outputs[0].value for o in counting if {o.inputs[0].value} == experts}
