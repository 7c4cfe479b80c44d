"""Rewrites slices of fused projections as parts of an axis made of two.

`qkv[..., :n]`, `qkv[..., n : 2 * n]` and `qkv[..., 2 * n :]` are three parts of an axis of 3 n elements. Rewritten as a
reshape and `select`, the axis of the weight is [3, heads, head_dim], as in models that reshape it themselves, and the
heads can be split.
"""

from collections.abc import Iterator

import torch

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.capture import Capture
from ssdsl.model.ops.registry import find
from ssdsl.model.rewrite.inline import inline

aten = torch.ops.aten


def take_apart(capture: Capture) -> list[CapturedCall]:
    """The calls with equal slices of a projection's result written as `reshape` and `select`."""
    fused = set(_fused(capture))
    calls: list[CapturedCall] = []
    for call in capture.calls:
        is_part = call.kind == "slice" and not fused.isdisjoint(call.refs())
        calls.extend(_part(call, capture) if is_part else [call])
    return calls


def _fused(capture: Capture) -> Iterator[str]:
    """The results of projections that are only read as equal parts of the last axis."""
    readers: dict[str, list[CapturedCall]] = {}
    for call in capture.calls:
        for value in dict.fromkeys(call.refs()):
            readers.setdefault(value, []).append(call)
    for call in capture.calls:
        op = find(call.target.name())
        if op is None or not op.projects:
            continue
        shape = capture.tensors[call.outputs[0]].shape
        bounds = [_bounds(reader, shape) for reader in readers.get(call.outputs[0], ())]
        if bounds and None not in bounds and len({size for _, size in filter(None, bounds)}) == 1:
            yield call.outputs[0]


def _bounds(call: CapturedCall, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Start and size of a slice, if it is one of several equal parts of the last axis."""
    if call.target.name() != "aten::slice.Tensor" or call.argument("dim") % len(shape) != len(shape) - 1:
        return None
    n = shape[-1]
    start, end = (n if i is None else min(i + n if i < 0 else i, n) for i in map(call.argument, ("start", "end")))
    start = 0 if call.argument("start") is None else start
    size = end - start
    aligned = 0 < size < n and n % size == 0 and start % size == 0
    return (start, size) if aligned and call.argument("step") == 1 else None


def _part(call: CapturedCall, capture: Capture) -> list[CapturedCall]:
    bounds = _bounds(call, capture.tensors[call.refs()[0]].shape)
    assert bounds is not None
    start, size = bounds

    def slice_of(x: torch.Tensor, *_: object) -> torch.Tensor:
        parts = x.reshape(*x.shape[:-1], x.shape[-1] // size, size)
        return parts.select(x.dim() - 1, start // size)

    return inline(slice_of, call, capture)
