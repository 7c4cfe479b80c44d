"""Computes the steps of a loop all at once, and its state by a scan, if each state is linear in the one before it.

A loop over a sequence is captured as a chain of steps. Each reads one position of the sequence, so no plan could split
the sequence. Here with the values of one step as they are captured, and those of all steps as they are rewritten:

    s_2 = s_1 * decay[:, 2] + k[:, 2] * v[:, 2]         states = linear_scan(decay, k * v, s_0, dim=0)
    y_2 = (q[:, 2] * s_2).sum(-1)                  ->   y = (q * states).sum(-1)
    torch.stack([y_0, y_1, y_2, ...], 1)                y.transpose(0, 1)

The results of a loop are the operands of a `stack`, of a `cat`, or of writes to all positions of a tensor. A *column*
is one value of each step. From the column of results the rewrite goes back to the columns that they are computed from:
if all steps call one operator, it is called once for all of them (`all_steps.py`). It ends at columns that are
positions of a tensor in order, at values that all steps share, and at columns of which each value is linear in that of
the step before, a recurrence (`recurrences.py`). If anything else is found, the loop stays as it is. So it does if
anything else reads a state, except for the last one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.capture import Capture
from ssdsl.model.graph import Ref
from ssdsl.model.rewrite.calls import rename, rename_results, without_unread
from ssdsl.model.rewrite.columns import Batched, Column, StepColumns, Unlike
from ssdsl.model.rewrite.places import place_in
from ssdsl.model.rewrite.recurrences import states_after, states_before
from ssdsl.record import Record, replace

aten = torch.ops.aten
Tensor = torch.Tensor
WRITES = ("select_scatter", "slice_scatter")


class Results(Record):
    """The results of a loop, joined by a call: a new axis `dim` is that of the steps, or each step has so many
    positions (`each`) of it."""

    call: CapturedCall
    column: Column
    dim: int
    each: int = 0


def linear_scans(capture: Capture) -> Capture:
    """The capture with the loops rewritten whose states are linear recurrences."""
    left: set[str] = set()  # joining calls whose loops stay as they are
    by_step: set[Column] = set()  # states after each step that follow from those before it
    while True:
        attempt = _Attempt(capture, left, by_step)
        if not attempt.run():
            return capture
        found = attempt.result()
        if alive := attempt.still_read(found):
            left |= alive
        elif twice := attempt.columns.twice() - by_step:
            by_step |= twice
        else:
            return found


@dataclass
class _Attempt:
    capture: Capture
    left: set[str]
    by_step: set[Column]
    renamed: dict[str, str] = field(default_factory=dict)
    replaced: set[str] = field(default_factory=set)  # values whose calls have others in their place
    scans: dict[str, set[Column]] = field(default_factory=dict)  # by a joining call, the states of its loop

    def __post_init__(self) -> None:
        self.columns = StepColumns(self.capture, self.by_step, states_after, states_before)

    def run(self) -> bool:
        """Rewrites all loops; whether there is one."""
        for results in joined(self.columns):
            if results.call.name not in self.left:
                self._rewrite(results)
        return bool(self.scans)

    def _rewrite(self, results: Results) -> None:
        columns, before = self.columns, self.columns.mark()
        try:
            steps = columns.batched(results.column)
            if steps.same or not (scans := columns.scans_of(results.column)):
                raise Unlike
        except (Unlike, RecursionError):
            columns.reset(before)
            return
        self.scans[results.call.name] = scans
        self._join(results, steps)
        for states in scans:
            self._last_state(states)

    def _join(self, results: Results, steps: Batched) -> None:
        output = results.call.outputs[0]
        shape, dim = self.capture.tensors[output].shape, results.dim

        def join(x: Tensor) -> Tensor:
            moved = x if dim == 0 else x.permute([*range(1, dim + 1), 0, *range(dim + 1, x.dim())])
            return moved.reshape(shape) if results.each else moved

        self.replaced.add(output)
        if dim == 0 and not results.each:
            self.renamed[output] = steps.value
        else:
            self.columns.emit(join, results.call, [steps], output)

    def _last_state(self, states: Column) -> None:
        """Takes the last state from those of all steps, if it may be read after the loop."""
        last, columns = states[-1], self.columns
        if last is None or last in self.replaced:
            return
        mark, place = columns.mark(), columns.order[last]
        try:
            after, like = columns.batched(states), columns.makers[last]
            columns.emit(lambda x: x.select(0, len(states) - 1), like, [after], last)
        except Unlike:
            columns.reset(mark)
            return
        if columns.order[last] > place:  # something may read it before it is there
            columns.reset(mark)
            return
        self.replaced.add(last)

    def result(self) -> Capture:
        """The capture with the new calls, each behind what it reads."""
        capture, columns = self.capture, self.columns
        new: dict[int, list[CapturedCall]] = {}
        for place, call in columns.emitted:
            new.setdefault(place, []).append(call)
        calls = list[CapturedCall]()
        for number, call in enumerate(capture.calls):
            calls += new.get(number, ())
            if self.replaced.isdisjoint(call.outputs):
                calls.append(call)
        calls = [rename(call, self.renamed) for call in calls]
        found = replace(capture, calls=calls, tensors={**capture.tensors, **columns.tensors})
        rename_results(found, self.renamed)
        return without_unread(found)

    def still_read(self, found: Capture) -> set[str]:
        """The joining calls of loops of which a state is still computed step by step."""
        alive = {name for call in found.calls for name in call.outputs} - self.replaced
        return {name for name, scans in self.scans.items() if any(not alive.isdisjoint(states[1:]) for states in scans)}


# -- the results of a loop ---------------------------------------------------------------------------------------------


def joined(columns: StepColumns) -> Iterator[Results]:
    """Yields the results of what may be loops."""
    overwritten = set[str]()
    for call in reversed(columns.capture.calls):
        if call.target.namespace != "aten":
            continue
        if call.kind in ("stack", "cat"):
            found = _concatenated(call, columns)
        elif call.kind in WRITES and call.outputs[0] not in overwritten:
            found = _written(call, columns, overwritten)
        else:
            continue
        if found is not None:
            yield found


def _concatenated(call: CapturedCall, columns: StepColumns) -> Results | None:
    values = tuple(item.value for item in call.args[0])
    shapes = {columns.capture.tensors[v].shape for v in values}
    if len(values) < 2 or len(shapes) > 1:
        return None
    rank = len(columns.capture.tensors[call.outputs[0]].shape)
    dim = call.argument("dim") % rank
    return Results(call, values, dim, 0 if call.kind == "stack" else shapes.pop()[dim])


def _written(call: CapturedCall, columns: StepColumns, overwritten: set[str]) -> Results | None:
    """The values that calls have written to all positions of a tensor, one after another."""
    tensors = columns.capture.tensors
    size = tensors[call.outputs[0]].shape
    values = dict[int, str]()  # by the first position
    each, dim, last, at = 0, -1, call, call
    while at.kind == last.kind and (place := place_in(at, size)) is not None:
        if values and (place.dim, place.size) != (dim, each):
            break
        dim, each = place.dim, place.size
        values.setdefault(place.start, at.args[1].value)
        overwritten.add(at.outputs[0])
        if not isinstance(at.args[0], Ref) or at.args[0].value not in columns.makers:
            break
        at = columns.makers[at.args[0].value]
    if len(values) < 2 or sorted(values) != [*range(0, size[dim], each)]:
        return None
    if any(tensors[v].dtype != tensors[call.outputs[0]].dtype for v in values.values()):
        return None
    return Results(call, tuple(values[start] for start in sorted(values)), dim, 0 if call.kind == WRITES[0] else each)
