"""Means over rows, of users' functions, as sums.

The mean of all rows is not the sum of the means of parts. So a function that gives one number, and that experiments
could not cut, is tried once more times a count: the number of rows, or of labels that are not ignored. If the parts add
up then, the call is that sum, divided by the count of the whole batch, as any loss that is a mean (`rewrite`).
"""

from collections.abc import Iterator
from typing import Any

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.capture import Capture
from ssdsl.model.capture.overloads import target_of
from ssdsl.model.capture.record import named
from ssdsl.model.dims.signature import parse_signature
from ssdsl.model.discover.draws import IGNORED
from ssdsl.model.discover.found import FoundRule
from ssdsl.model.graph import Ref
from ssdsl.model.ops.functions import WORDS, FunctionClass, RowFactor, integers_in
from ssdsl.model.rewrite.calls import inline, temporary, with_arguments
from ssdsl.record import replace

MARKS = (IGNORED, -1, 0)  # labels that mostly do not count
MOST_MARKS = 4


def multiplied(call: CapturedCall, rule: FoundRule, capture: Capture) -> Iterator[tuple[RowFactor, CapturedCall]]:
    """The counts by which a call may have to be multiplied, and it times these; none unless it gives one number that no
    experiment could cut."""
    is_number = len(call.outputs) == 1 and capture.tensors[call.outputs[0]].shape == ()
    if is_number and FunctionClass.of(call.target) is not None and rule.why_whole and not rule.unsteady:
        for times in _counts(call, capture):
            yield times, with_arguments(call, times=str(times))


def _counts(call: CapturedCall, capture: Capture) -> Iterator[RowFactor]:
    """Rows are along the first axes of the first tensor; labels are integers."""
    tensors = {name: capture.tensors[ref] for name, ref in _read(call).items()}
    name, first = next(iter(tensors.items()))
    for count in range(len(first.shape) - 1, 0, -1):
        yield RowFactor(tuple((name, axis) for axis in range(count)))
    marks = [*dict.fromkeys((*integers_in(call.argument("given")), *MARKS))][:MOST_MARKS]
    for name, tensor in tensors.items():
        if tensor.dtype.startswith(("int", "uint")) and tensor.shape:
            yield from (RowFactor(counts=(name, mark)) for mark in marks)


def _read(call: CapturedCall) -> dict[str, str]:
    """The values that a call reads, by the names of their parameters."""
    names = [p.name for p in target_of(call.target).parameters[: -len(WORDS)]]
    return dict(zip(names, call.refs(), strict=True))


def is_cut(rule: FoundRule, times: RowFactor) -> bool:
    """Whether a call times a count may be cut, along all axes of the count."""
    axes = parse_signature(rule.signature).inputs[0].axes
    whole = (any(letter.fixed for letter in axes[axis] or ()) for _, axis in times.axes)
    return not rule.why_whole and not rule.unsteady and not any(whole)


def as_sum(call: CapturedCall, times: RowFactor, rule: FoundRule, capture: Capture) -> list[CapturedCall]:
    """The calls in place of one that is a mean: the sum, with its rule, and a division by the count."""
    (mean,) = call.outputs
    total = temporary(f"{call.name}_total", capture, capture.tensors[mean])
    summed = replace(with_arguments(call, times=str(times)), name=total, outputs=(total,), found=rule)
    names = [times.axes[0][0] if times.counts is None else times.counts[0]]

    def divided(total: Any, *tensors: Any) -> Any:
        count = times.number(dict(zip(names, tensors, strict=True)))
        return total / (count if times.counts is None else named("count", count))

    tensors = [Ref(_read(call)[name]) for name in names]
    return [summed, *inline(divided, replace(call, found=None, orders=()), capture, [Ref(total), *tensors])]
