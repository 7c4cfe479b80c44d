"""Prepares the buffers that a forward changes: gives each new value an operator, and checks who reads statistics.

A program writes a buffer where its new value is computed, and the value counts from the next step on.
"""

from dataclasses import replace

import torch

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.capture import Capture
from ssdsl.model.capture.errors import StatisticsRead
from ssdsl.model.graph import Origin, Ref
from ssdsl.model.rewrite.calls import changed_statistics, temporary
from ssdsl.model.rewrite.inline import inline
from ssdsl.text.diagnostic import PlanError

aten = torch.ops.aten


def check_statistics(capture: Capture) -> None:
    """Raises PlanError if a call reads running statistics after the batch norm that changes them."""
    changed: set[str] = set()
    for call in capture.calls:
        for name in sorted(changed.intersection(call.refs())) if call.kind != "batch_norm" else ():
            raise PlanError(StatisticsRead(None, call.kind, name, call.path or "the model", call.source))
        changed.update(changed_statistics(call))


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

    def copy(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
        always = aten.ones.default((), dtype=torch.bool, device=torch.device("cpu"))
        return torch.where(always, new, old)

    name = temporary(f"{near.name}_{buffer.replace('.', '_')}_next", capture, capture.tensors[buffer])
    return inline(copy, replace(near, name=name, outputs=(name,)), capture, (Ref(value), Ref(buffer)))
