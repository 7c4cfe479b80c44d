"""Prepares the buffers that a forward changes: gives each new value an operator, and checks who reads statistics.

A program writes a buffer where its new value is computed, and the value counts from the next step on.
"""

from dataclasses import replace

import torch

from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.model.capture.capture import Capture
from ssdsl.model.capture.errors import StatisticsRead
from ssdsl.model.graph import Origin, Ref
from ssdsl.model.rewrite.new_call import replace_call, temporary
from ssdsl.text.diagnostic import PlanError

aten = torch.ops.aten


def check_statistics(capture: Capture) -> None:
    """Raises PlanError if a call reads running statistics after the batch norm that changes them."""
    changed: set[str] = set()
    for call in capture.calls:
        for name in sorted(changed.intersection(call.refs())) if call.kind != "batch_norm" else ():
            raise PlanError(StatisticsRead(None, call.kind, name, call.path or "the model", call.source))
        changed.update(changed_statistics(call))


def changed_statistics(call: CapturedCall) -> tuple[str, ...]:
    """The buffers that a normalised call changes in place: the running statistics of a batch norm in training."""
    if call.kind != "batch_norm" or call.args[5] is not True:
        return ()
    return tuple(a.value for a in call.args[3:5] if isinstance(a, Ref))


def compute_updates(capture: Capture) -> None:
    """Gives each buffer's new value an operator of its own that reads the buffer, and so has a place in a plan.

    A new value that depends on inputs only, or is another buffer, would be made on no device, or on all.
    """
    level = {n: o in (Origin.WEIGHT, Origin.BUFFER) for n, o in capture.origins.items()}
    placed: set[str] = set()
    for call in capture.calls:
        if any(level.get(r, False) for r in call.refs()):
            level.update(dict.fromkeys(call.outputs, True))
            placed.update(call.outputs)
    for buffer, value in capture.updates.items():
        if value in placed:
            placed.remove(value)  # a second buffer with this value has an operator of its own
            continue
        at = _place(capture, buffer, value)
        capture.calls[at:at] = _choice(capture, capture.calls[at - 1], buffer, value)
        capture.updates[buffer] = capture.calls[at + 1].name


def _place(capture: Capture, buffer: str, value: str) -> int:
    """The position for new calls: behind the call that makes the value, and the first one that reads the buffer."""
    makes = next((n for n, c in enumerate(capture.calls) if value in c.outputs), 0)
    return 1 + max(makes, next((n for n, c in enumerate(capture.calls) if buffer in c.refs()), 0))


def _choice(capture: Capture, near: CapturedCall, buffer: str, value: str) -> list[CapturedCall]:
    """Calls that choose between the new and the old value of a buffer, and always take the new one."""
    name = f"{buffer.replace('.', '_')}_next"
    kwargs = {"dtype": torch.bool, "device": torch.device("cpu")}
    always = temporary(near, f"{name}_always", capture, Tensor((), "bool"))
    made = replace(near, kind="ones", target=aten.ones.default, args=((),), kwargs=kwargs)
    new = temporary(near, name, capture, capture.tensors[buffer])
    chosen = replace_call(near, aten.where.self, (Ref(always), Ref(value), Ref(buffer)), new)
    return [replace(made, name=always, outputs=(always,)), chosen]
