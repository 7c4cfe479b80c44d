"""Means over rows, of users' functions, as sums.

The mean of all rows is not the mean of the means of parts. A function whose row says that its result is a `mean` is
multiplied by the number of rows, or of labels that count, in one operator whose parts add up. Its result is divided by
the number in the whole batch, as any loss that is a mean (`rules.py`):

    loss = FusedLoss(x, weight, labels)          # mean="labels != -100"

    loss_total = FusedLoss(x, weight, labels) * (labels != -100).sum()
    loss = loss_total / (labels != -100).sum()
"""

import itertools
from typing import Any

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.capture import Capture
from ssdsl.model.capture.overloads import target_of
from ssdsl.model.capture.record import named
from ssdsl.model.dims.analyse import does_not_fit
from ssdsl.model.graph import Ref
from ssdsl.model.ops.functions import WORDS, FunctionClass, RowFactor
from ssdsl.model.ops.reader import TypedCall
from ssdsl.model.ops.registry import given
from ssdsl.model.rewrite.calls import inline, temporary, with_arguments
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError


def means_as_sums(capture: Capture) -> Capture:
    """The same computation, in which users' functions that are means are sums, each divided by a count."""
    new = replace(capture, tensors=dict(capture.tensors))
    return replace(new, calls=[*itertools.chain.from_iterable(_without_mean(call, new) for call in capture.calls)])


def _without_mean(call: CapturedCall, capture: Capture) -> list[CapturedCall]:
    op, typed = given(call), TypedCall(call, capture.tensors)
    over = "" if op is None else op.mean if isinstance(op.mean, str) else op.mean(typed)
    if not over:
        return [call]
    times = RowFactor.of(over)
    if reason := _misfit(typed, times):
        raise PlanError(does_not_fit(typed, f"`mean` is `{over}`, but {reason}"))
    return as_sum(call, times, capture)


def _misfit(call: TypedCall, times: RowFactor) -> str:
    """Why a call is no mean over these rows; "" if it may be."""
    if FunctionClass.of(call.call.target) is None:
        return "the operator is no torch.autograd.Function"
    if [t.shape for t in call.outputs] != [()]:
        return "the result is not one number"
    ranks = {name: len(call.tensors[value].shape) for name, value in tensors_read(call.call).items()}
    places = times.axes if times.counts is None else ((times.counts[0], -1),)
    wrong = [name for name, axis in places if axis >= ranks.get(name, -1)]
    return f"no tensor `{wrong[0]}` has that axis; tensors are {', '.join(ranks)}" if wrong else ""


def tensors_read(call: CapturedCall) -> dict[str, str]:
    """The values that a call of a function reads, by the names of their parameters."""
    names = [p.name for p in target_of(call.target).parameters[: -len(WORDS)]]
    return dict(zip(names, call.refs(), strict=True))


def as_sum(call: CapturedCall, times: RowFactor, capture: Capture) -> list[CapturedCall]:
    """The calls in place of one that is a mean: the sum, and a division by the count."""
    (mean,) = call.outputs
    total = temporary(f"{call.name}_total", capture, capture.tensors[mean])
    summed = replace(with_arguments(call, times=str(times)), name=total, outputs=(total,))
    names = [*dict.fromkeys(name for name, _ in times.axes)] if times.counts is None else [times.counts[0]]

    def divided(total: Any, *tensors: Any) -> Any:
        count = times.number(dict(zip(names, tensors, strict=True)))
        return total / (count if times.counts is None else named("count", count))

    tensors = [Ref(tensors_read(call)[name]) for name in names]
    return [summed, *inline(divided, replace(call, orders=()), capture, [Ref(total), *tensors])]
