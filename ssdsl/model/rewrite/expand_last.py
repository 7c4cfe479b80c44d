"""Repeats constants last: what is computed of the elements of a repeated constant is computed of the constant instead.

Models of `transformers` repeat a mask for every sample and then choose numbers by it. The numbers have the size of the
batch, and a part computes them for each micro-batch. Chosen first and repeated then, they are a constant, which is
computed once, and a view of it.
"""

from dataclasses import replace
from typing import Any

import torch

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.capture import Capture
from ssdsl.model.graph import Origin
from ssdsl.model.rewrite.calls import rename
from ssdsl.model.rewrite.causal import is_pointwise
from ssdsl.model.rewrite.inline import inline

EXPAND = torch.ops.aten.expand.default


def expand_last(capture: Capture) -> Capture:
    """The capture with such calls in front of the `expand`, which then may be unread."""
    found = replace(capture, calls=[], tensors=dict(capture.tensors))
    constants = {name for name, origin in capture.origins.items() if origin is Origin.CONSTANT}
    repeats: dict[str, str] = {}  # by the result of an `expand`, the constant that it repeats
    for call in capture.calls:
        calls = [call]
        if constants.issuperset(call.refs()):
            if not repeats.keys().isdisjoint(call.refs()) and is_pointwise(call):
                calls = _expanding(rename(call, repeats), found) or calls
            constants.update(o for made in calls for o in made.outputs)
            if calls[-1].target is EXPAND:
                of = calls[-1].refs()[0]
                repeats[calls[-1].outputs[0]] = repeats.get(of, of)
        found.calls += calls
    return found


def _expanding(call: CapturedCall, capture: Capture) -> list[CapturedCall]:
    """A call of constants that are not repeated, and the `expand` of its result; nothing if another operand has all
    elements, if the result would have another dtype, or if there are several or it asks for an order in memory."""
    if len(call.outputs) > 1 or call.orders:
        return []
    tensor = capture.tensors[call.outputs[0]]

    def rule(*args: Any, **kwargs: Any) -> Any:
        made = call.target(*args, **kwargs)
        is_same = str(made.dtype).removeprefix("torch.") == tensor.dtype
        return made.expand(tensor.shape) if is_same and tuple(made.shape) != tensor.shape else NotImplemented

    calls = inline(rule, call, capture)
    return calls if len(calls) == 2 else []
