"""Outputs that are known without an operator on weights: a weight, an input, or what follows from inputs alone.

An output is asked of devices of the plan, and these compute what operators on weights make. So each such output becomes
a copy, which counts as one of these: it has a place, a layout and a proof as any other.
"""

import torch

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.capture import Capture
from ssdsl.model.graph import Ref
from ssdsl.model.rewrite.calls import temporary
from ssdsl.record import replace

CLONE = torch.ops.aten.clone.default


def copy_known(capture: Capture, known: set[str]) -> Capture:
    """The capture with a copy of each output that a call in `known` makes, or that no call makes."""
    makers = capture.makers()
    of_weights = {v for v, maker in makers.items() if maker.name not in known}
    values = dict.fromkeys(v for v in capture.outputs.values() if v not in of_weights)
    if not values:
        return capture
    found = replace(capture, tensors=dict(capture.tensors))
    tensors = {v: replace(capture.tensors[v], differentiable=False) for v in values}
    names = {v: temporary(f"{v}_returned", found, tensor) for v, tensor in tensors.items()}
    copies = [CapturedCall(name, "clone", CLONE, (Ref(v),), {}, "", "", (name,)) for v, name in names.items()]
    outputs = {name: names.get(v, v) for name, v in capture.outputs.items()}
    return replace(found, calls=[*capture.calls, *copies], outputs=outputs)
