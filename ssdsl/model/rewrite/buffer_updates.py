"""Buffers that a forward changes: what makes their new values, and what may read them.

A program writes a buffer where its new value is computed, and the value counts from the next step on.
"""

from dataclasses import replace

import torch

from ssdsl.model.call import Call, Tensor
from ssdsl.model.capture import Capture
from ssdsl.model.graph import Origin, Ref
from ssdsl.model.rewrite.new_call import replace_call, temporary
from ssdsl.model.trace_errors import StatisticsRead
from ssdsl.text.diagnostic import PlanError

aten = torch.ops.aten


def check_statistics(capture: Capture) -> None:
    """Running statistics are not read behind the batch norm that changes them. Raises PlanError."""
    changed: set[str] = set()
    for call in capture.calls:
        for name in sorted(changed.intersection(call.refs())) if call.kind != "batch_norm" else ():
            raise PlanError(StatisticsRead(None, call.kind, name, call.path or "the model", call.source))
        changed.update(changed_statistics(call))


def changed_statistics(call: Call) -> tuple[str, ...]:
    """The buffers that a normalised call changes in place: the running statistics of a batch norm in training."""
    if call.kind != "batch_norm" or call.args[5] is not True:
        return ()
    return tuple(a.value for a in call.args[3:5] if isinstance(a, Ref))


def compute_updates(capture: Capture) -> None:
    """A buffer's new value is made by an operator of its own that has a place: one that reads the buffer.

    A new value that depends on inputs only, or is another buffer, would be made nowhere, or everywhere.
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
    """Behind what makes the value, and beside the first operator that reads the buffer."""
    makes = next((n for n, c in enumerate(capture.calls) if value in c.outputs), 0)
    return 1 + max(makes, next((n for n, c in enumerate(capture.calls) if buffer in c.refs()), 0))


def _choice(capture: Capture, near: Call, buffer: str, value: str) -> list[Call]:
    """Calls that choose the new value before the old one, always."""
    name = f"{buffer.replace('.', '_')}_next"
    kwargs = {"dtype": torch.bool, "device": torch.device("cpu")}
    always = temporary(near, f"{name}_always", capture, Tensor((), "bool"))
    made = replace(near, kind="ones", target=aten.ones.default, args=((),), kwargs=kwargs)
    new = temporary(near, name, capture, capture.tensors[buffer])
    chosen = replace_call(near, aten.where.self, (Ref(always), Ref(value), Ref(buffer)), new)
    return [replace(made, name=always, outputs=(always,)), chosen]
