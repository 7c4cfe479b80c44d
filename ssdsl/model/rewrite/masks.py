"""Replaces masks that are causal by the flag `is_causal`, leaves out masks that hide nothing, and says how far others
let a query see.

Models of `transformers` pass a mask even where it only lets each query see the keys up to its own position. With the
flag, a run of queries is known to need only the keys up to its end, and fused kernels read no mask. To find out, the
mask is computed, in blocks of rows.

A mask that is zero everywhere, or true, is left out: T5 makes one of batch x heads x queries x keys for each
cross-attention. A choice between a bias and the least number that hides nothing is the bias, which has no batch.

If all keys that a mask shows lie near its query, attention becomes `banded_attention`, which is the same with the mask
and has its band (`band.py`). So a run of queries is known to need only the keys around it.
"""

import functools
from typing import Any

import torch

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.capture import Capture
from ssdsl.model.graph import Ref
from ssdsl.model.ops import library as library  # registers the operators
from ssdsl.model.rewrite.band import Reach, band_of
from ssdsl.model.rewrite.constants import CHOICES
from ssdsl.model.rewrite.mask_numbers import BLOCK, LONGEST, MaskNumbers
from ssdsl.record import replace

aten, own = torch.ops.aten, torch.ops.ssdsl
BANDED = {
    "aten::scaled_dot_product_attention": own.banded_attention.default,
    "ssdsl::attention_dropout": own.attention_dropout.default,
}


def simplify_masks(capture: Capture) -> Capture:
    """The capture with `is_causal` or nothing in place of such masks, which then may be unread, and with the bands of
    others."""
    masks = _Masks(capture)
    return replace(capture, calls=[_unmasked(call, masks) for call in capture.calls])


def _unmasked(call: CapturedCall, masks: "_Masks") -> CapturedCall:
    """The call; if it is attention with such a mask, a call without it."""
    if call.target.name().partition(".")[0] not in BANDED or not isinstance(call.argument("attn_mask"), Ref):
        return call
    if masks.is_causal(call):
        return _with(call, {"attn_mask": None, "is_causal": True})
    mask = masks.simpler(call)
    call = call if mask == call.argument("attn_mask") else _with(call, {"attn_mask": mask})
    reach = masks.band(call, mask)
    return call if reach is None else _banded(call, reach)


def _banded(call: CapturedCall, reach: Reach) -> CapturedCall:
    """The call as one whose queries are known to reach so far."""
    target = BANDED[call.target.name().partition(".")[0]]
    names = [p.name for p in target._schema.arguments[:-1]]
    if target is not call.target and call.argument("dropout_p"):
        return call
    return replace(call, target=target, args=(*map(call.argument, names), reach), kwargs={})


def _with(call: CapturedCall, words: dict[str, Any]) -> CapturedCall:
    """The call with some arguments replaced by name."""
    names = [p.name for p in call.target._schema.arguments]
    args = tuple(words.get(name, given) for name, given in zip(names, call.args, strict=False))
    late = {name: word for name, word in words.items() if name in names[len(args) :] and word is not None}
    kwargs = {name: words.get(name, given) for name, given in call.kwargs.items()} | late
    return replace(call, args=args, kwargs=kwargs)


class _Masks(MaskNumbers):
    """The masks of a capture, each followed once."""

    def __init__(self, capture: Capture) -> None:
        super().__init__(capture)
        self.is_triangle = functools.cache(self._is_triangle)
        self.reach = functools.cache(lambda mask: band_of(mask, self))

    def is_causal(self, call: CapturedCall) -> bool:
        """Whether a call is attention with as many queries as keys, and its mask hides just the keys behind a query."""
        mask = call.argument("attn_mask")
        return self._is_square(call, mask) and self.is_triangle(mask.value)

    def band(self, call: CapturedCall, mask: Any) -> Reach | None:
        """The reach of attention with this mask; None if it is not known to be shorter than the sequence."""
        return self.reach(mask.value) if isinstance(mask, Ref) and self._is_square(call, mask) else None

    def _is_square(self, call: CapturedCall, mask: Ref) -> bool:
        """Whether a mask has a row for each query and a column for each key, and there are as many of both."""
        rows, columns = (self.shape(r)[-2] for r in call.refs()[:2])
        is_plain = not call.argument("is_causal") and rows == columns != 1
        return is_plain and self.shape(mask.value)[-2:] == (rows, rows)

    def simpler(self, call: CapturedCall) -> Any:
        """The mask of a call, simplified: None if it hides and adds nothing; the bias, if it always chooses that."""
        mask = call.argument("attn_mask")
        if self.shape(call.outputs[0])[:-1] != self.shape(call.refs()[0])[:-1]:
            return mask  # it has more batches than the queries
        chooses = self.calls.get(mask.value)
        if chooses is not None and chooses.target in CHOICES[:2] and self._is_everywhere(chooses.refs()[0], True):
            mask = chooses.args[1]
        nothing = self.capture.tensors[mask.value].dtype == "bool"
        return None if self._is_everywhere(mask.value, nothing) else mask

    def _is_everywhere(self, value: str, number: bool) -> bool:
        found = self.part(value, None)
        return found is not None and bool(found == number)

    def _is_triangle(self, mask: str) -> bool:
        size = self.capture.tensors[mask].shape[-1]
        if size > LONGEST:
            return self._compares(mask)
        step = max(1, BLOCK // size)
        columns = torch.arange(size)
        for start in range(0, size, step):
            rows = torch.arange(start, min(start + step, size))
            found = self.part(mask, slice(start, start + len(rows)))
            if found is None or not _hides(found, columns > rows[:, None]):
                return False
        return True

    def _is_square_sum(self, value: str) -> bool:
        """Whether a value has an element for each query and each key that is not repeated."""
        shape, call = self.shape(value)[-2:], self.calls.get(value)
        return len(shape) == 2 and 1 not in shape and (call is None or call.target is not aten.expand.default)

    def _compares(self, value: str) -> bool:
        """Whether a long mask only compares the positions of queries and keys: `key <= query`."""
        call = self.calls.get(value)
        if call is None or len(call.outputs) > 1:
            return False
        if call.target is aten.expand.default:
            return self._compares(call.refs()[0])
        if call.target in (aten.__and__.Tensor, aten.bitwise_and.Tensor, aten.logical_and.default):
            found = [self.part(r, None) for r in call.refs()]
            rest = [r for r, t in zip(call.refs(), found, strict=True) if t is None or not bool(t)]
            return len(rest) == 1 and self._compares(rest[0])
        if call.target not in (aten.le.Tensor, aten.ge.Tensor) or any(map(self._is_square_sum, call.refs())):
            return False
        whole = slice(0, self.capture.tensors[value].shape[-1])
        low, high = (self.part(r, whole) for r in call.refs()[:: 1 if call.target is aten.le.Tensor else -1])
        if low is None or high is None or low.dim() < 1 or high.dim() < 2:
            return False
        if (low.shape[-1], high.shape[-2]) != (low.numel(), high.numel()):
            return False  # `low` has to vary along keys only, `high` along queries only
        keys, queries = low.flatten(), high.flatten()
        # Query i sees key i, not key i + 1, and keys rise: so it sees just the keys 0 to i.
        return bool((keys <= queries).all() and (keys[1:] > queries[:-1]).all() and (keys[1:] >= keys[:-1]).all())


def _hides(mask: torch.Tensor, behind: torch.Tensor) -> bool:
    """Whether rows of a mask hide just the keys that are `behind`, by False or by the least number of their dtype."""
    if mask.dim() < 2:
        mask = mask.expand_as(behind)
    if mask.dtype == torch.bool:
        return bool((mask ^ behind).all())
    least = torch.finfo(mask.dtype).min
    return bool(torch.where(behind, mask <= least, mask == 0).all())
