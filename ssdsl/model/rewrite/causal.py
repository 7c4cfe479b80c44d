"""Replaces masks that are causal by the flag `is_causal`, and leaves out masks that hide nothing.

Models of `transformers` pass a mask even where it only lets each query see the keys up to its own position. With the
flag, a run of queries is known to need only the keys up to its end, and fused kernels read no mask. To find out, the
mask is computed, in blocks of rows.

A mask that is zero everywhere, or true, is left out: T5 makes one of batch x heads x queries x keys for each
cross-attention. A choice between a bias and the least number that hides nothing is the bias, which has no batch.
"""

import functools
import math
from typing import Any

import torch

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.capture import Capture
from ssdsl.model.graph import Ref
from ssdsl.model.rewrite.constants import CHOICES, LARGEST, is_pointwise, known_numbers, with_numbers
from ssdsl.record import replace

ATTENTION = {"aten::scaled_dot_product_attention", "ssdsl::attention_dropout"}
LONGEST = 1 << 13  # queries; all elements are computed of masks that are not longer
BLOCK = 1 << 24  # elements of a mask that are computed together
POSITIONS = 1 << 25  # elements of what a mask compares, such as positions of all samples: 16 million tokens and more
aten = torch.ops.aten
FILLED = {aten.zeros.default: 0, aten.ones.default: 1}


def flag_causal(capture: Capture) -> Capture:
    """The capture with `is_causal` or nothing in place of such masks, which then may be unread."""
    masks = _Masks(capture)
    return replace(capture, calls=[_unmasked(call, masks) for call in capture.calls])


def _unmasked(call: CapturedCall, masks: "_Masks") -> CapturedCall:
    """The call; if it is attention with such a mask, a call without it."""
    if call.target.name().partition(".")[0] not in ATTENTION or not isinstance(call.argument("attn_mask"), Ref):
        return call
    if masks.is_causal(call):
        return _with(call, {"attn_mask": None, "is_causal": True})
    mask = masks.simpler(call)
    return call if mask == call.argument("attn_mask") else _with(call, {"attn_mask": mask})


def _with(call: CapturedCall, words: dict[str, Any]) -> CapturedCall:
    """The call with some arguments replaced by name."""
    names = [p.name for p in call.target._schema.arguments]
    args = tuple(words.get(name, given) for name, given in zip(names, call.args, strict=False))
    late = {name: word for name, word in words.items() if name in names[len(args) :] and word is not None}
    kwargs = {name: words.get(name, given) for name, given in call.kwargs.items()} | late
    return replace(call, args=args, kwargs=kwargs)


class _Masks:
    """The masks of a capture, each computed once."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.calls = capture.makers()
        self.numbers: dict[str, torch.Tensor | None] = {}
        self.is_triangle = functools.cache(self._is_triangle)

    def is_causal(self, call: CapturedCall) -> bool:
        """Whether a call is attention with as many queries as keys, and its mask hides just the keys behind a query."""
        mask, shapes = call.argument("attn_mask"), [self.capture.tensors[r].shape for r in call.refs()[:2]]
        rows, columns = (shape[-2] for shape in shapes)
        if call.argument("is_causal") or rows != columns or rows == 1:
            return False
        return self.capture.tensors[mask.value].shape[-2:] == (rows, rows) and self.is_triangle(mask.value)

    def simpler(self, call: CapturedCall) -> Any:
        """The mask of a call, simplified: None if it hides and adds nothing; the bias, if it always chooses that."""
        mask = call.argument("attn_mask")
        if self._shape(call.outputs[0])[:-1] != self._shape(call.refs()[0])[:-1]:
            return mask  # it has more batches than the queries
        chooses = self.calls.get(mask.value)
        if chooses is not None and chooses.target in CHOICES[:2] and self._is_everywhere(chooses.refs()[0], True):
            mask = chooses.args[1]
        nothing = self.capture.tensors[mask.value].dtype == "bool"
        return None if self._is_everywhere(mask.value, nothing) else mask

    def _is_everywhere(self, value: str, number: bool) -> bool:
        found = self._part(value, None)
        return found is not None and bool(found == number)

    def _shape(self, value: str) -> tuple[int, ...]:
        return tuple(self.capture.tensors[value].shape)

    def _is_triangle(self, mask: str) -> bool:
        size = self.capture.tensors[mask].shape[-1]
        if size > LONGEST:
            return self._compares(mask)
        step = max(1, BLOCK // size)
        columns = torch.arange(size)
        for start in range(0, size, step):
            rows = torch.arange(start, min(start + step, size))
            found = self._part(mask, slice(start, start + len(rows)))
            if found is None or not _hides(found, columns > rows[:, None]):
                return False
        return True

    def _compares(self, value: str) -> bool:
        """Whether a long mask only compares the positions of queries and keys: `key <= query`."""
        call = self.calls.get(value)
        if call is None or len(call.outputs) > 1:
            return False
        if call.target is aten.expand.default:
            return self._compares(call.refs()[0])
        if call.target in (aten.__and__.Tensor, aten.bitwise_and.Tensor, aten.logical_and.default):
            found = [self._part(r, None) for r in call.refs()]
            rest = [r for r, t in zip(call.refs(), found, strict=True) if t is None or not bool(t)]
            return len(rest) == 1 and self._compares(rest[0])
        if call.target not in (aten.le.Tensor, aten.ge.Tensor):
            return False
        whole = slice(0, self.capture.tensors[value].shape[-1])
        low, high = (self._part(r, whole) for r in call.refs()[:: 1 if call.target is aten.le.Tensor else -1])
        if low is None or high is None or low.dim() < 1 or high.dim() < 2:
            return False
        if (low.shape[-1], high.shape[-2]) != (low.numel(), high.numel()):
            return False  # `low` has to vary along keys only, `high` along queries only
        keys, queries = low.flatten(), high.flatten()
        # Query i sees key i, not key i + 1, and keys rise: so it sees just the keys 0 to i.
        return bool((keys <= queries).all() and (keys[1:] > queries[:-1]).all() and (keys[1:] >= keys[:-1]).all())

    def _part(self, value: str, rows: slice | None) -> torch.Tensor | None:
        """Rows (along the axis before the last) of a constant, or without `rows` its one number; axes along which it
        does not vary may have size one. None if a value is no such constant."""
        call = self.calls.get(value)
        if math.prod(self._shape(value)) <= LARGEST or (call is not None and not _is_by_rows(call)):
            found = self._known(value)
            if found is None or rows is None:
                return found if found is not None and found.numel() == 1 else None
            return found[..., rows, :] if found.dim() > 1 and found.shape[-2] > 1 else found
        if call is None:
            return None
        if call.target is aten.full.default or call.target in FILLED:
            number = FILLED[call.target] if call.target in FILLED else call.args[1]
            return torch.full([], number, dtype=getattr(torch, self.capture.tensors[value].dtype))
        given = {r: self._part(r, rows) for r in call.refs()}
        tensors = {r: t for r, t in given.items() if t is not None}
        if len(tensors) < len(given):
            return None
        return tensors[call.refs()[0]] if call.target is aten.expand.default else with_numbers(call, tensors)

    def _known(self, value: str) -> torch.Tensor | None:
        if value not in self.numbers:
            known = known_numbers(value, self.calls, self.capture, POSITIONS)
            self.numbers[value] = None if known is None else _alike(known)
        return self.numbers[value]


def _is_by_rows(call: CapturedCall) -> bool:
    """Whether rows of a call's result follow from the same rows of its operands, or are all alike."""
    filled = call.target is aten.full.default or call.target in FILLED
    return len(call.outputs) == 1 and (filled or call.target is aten.expand.default or is_pointwise(call))


def _alike(numbers: torch.Tensor) -> torch.Tensor:
    """The numbers, with size one along axes along which they do not vary."""
    for axis in range(numbers.dim()):
        first = numbers.narrow(axis, 0, min(1, numbers.shape[axis]))
        if torch.equal(first.expand_as(numbers), numbers):
            numbers = first.clone()  # a view would keep the memory of all
    return numbers


def _hides(mask: torch.Tensor, behind: torch.Tensor) -> bool:
    """Whether rows of a mask hide just the keys that are `behind`, by False or by the least number of their dtype."""
    if mask.dim() < 2:
        mask = mask.expand_as(behind)
    if mask.dtype == torch.bool:
        return bool((mask ^ behind).all())
    least = torch.finfo(mask.dtype).min
    return bool(torch.where(behind, mask <= least, mask == 0).all())
