"""Flex attention, and attention of packed documents, as operators that have rows: attention with a mask.

torch's own `flex_attention` takes functions as arguments, which no graph can hold, and has no backward on a CPU. It
calls one operator after it has checked its arguments; here that operator is another function, which runs the functions
of scores and of the mask on tensors of indices. A function of scores that only adds to them (a bias that depends on
positions, `-inf` where a position is not seen) becomes the mask of `scaled_dot_product_attention`, which is split as
any attention is. Others are applied between a product and a softmax.

`varlen_attn` runs on GPUs alone, and gets the bounds of the documents that lie one behind the other in a row:
`cu_seqlens` [0, 5, 9] are two documents of 5 and 4 tokens. Its mask lets a query see the keys of its own document.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch._higher_order_ops.flex_attention import math_attention
from torch.nn.attention import flex_attention as flex
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ssdsl.model.capture.preserve import patched, unrecorded

Tensor = torch.Tensor
Function = Callable[..., Tensor]
aten = torch.ops.aten
INFINITY = float("inf")
BLOCKS = (
    "create_mask",
    "_convert_mask_to_block_mask",
    "_create_sparse_block_from_block_mask",
    "_create_empty_block_mask",
)
FULL = (aten.scalar_tensor, aten.full, aten.full_like)
SAME = (aten.alias, aten.clone, aten.detach, aten.expand, aten._to_copy, aten.lift_fresh)


class NotOnAll(Exception):
    """A function of flex attention gives another result on tensors of indices than on each index."""

    def __init__(self, function: Function) -> None:
        super().__init__(getattr(function, "__name__", "a function"))
        self.function = function


def attention_as_operators() -> contextlib.AbstractContextManager[None]:
    """A context in which `flex_attention` and `varlen_attn` run as operators that have rows."""
    return _attention_as(attention)


def masked_attention() -> contextlib.AbstractContextManager[None]:
    """A context in which `flex_attention` runs as torch's own reference of it, which has gradients on a CPU too: its
    functions run for each score, under `torch.vmap`. `varlen_attn` runs as operators."""
    return _attention_as(math_attention)


@contextlib.contextmanager
def _attention_as(function: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> Iterator[None]:
    replaced = {
        "flex_attention_hop": function,
        "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True,
        "_validate_device": lambda *given: None,  # it refuses what torch's kernels cannot do on a CPU
        "_apply_kernel_options": _asked,  # it, too
        **{name: _unrecorded(getattr(flex, name)) for name in BLOCKS},
    }
    with contextlib.ExitStack() as stack:
        for name, replacement in replaced.items():
            stack.enter_context(patched(flex, name, replacement))
        if find_spec("torch.nn.attention.varlen"):  # since torch 2.10
            import_module("torch.nn.attention.varlen")  # it registers the operator
            stack.enter_context(patched(torch.ops.torch_attn, "_varlen_attn", documents_attention))
        yield


def _asked(
    query: Tensor, key: Tensor, value: Tensor, return_lse: bool, kernel_options: Any, return_aux: Any = None
) -> dict[str, Any]:
    """The results that a call asks for beside its output, in the place of the options of torch's kernels."""
    log_sum = return_lse or (return_aux is not None and return_aux.lse)
    return {
        "OUTPUT_LOGSUMEXP": log_sum,
        "OUTPUT_MAX": return_aux is not None and return_aux.max_scores,
        "BACKEND": "AUTO",
    }


def _unrecorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose operators are not recorded: it finds the blocks of a mask, which nothing reads here."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with unrecorded():
            return function(*args, **kwargs)

    return run


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Function,
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: dict[str, Any],
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and the logarithm (to base 2) of the sum of exponentials and the largest score where they are asked
    for, as torch's operator returns them; else empty tensors."""
    if key.size(0) != query.size(0):
        key, value = (t.expand(query.size(0), *t.shape[1:]) for t in (key, value))
    places = _places(query, key)
    mask = None if block_mask[-1] is flex.noop_mask else _applied(block_mask[-1], *places)
    score = None if score_mod is flex._identity else score_mod
    asks = [bool(kernel_options.get(word)) for word in ("OUTPUT_LOGSUMEXP", "OUTPUT_MAX")]
    none = torch.empty(0, device=query.device)
    exact = query.dtype in (torch.float32, torch.float64)  # scores have at least this precision
    if not any(asks) and (score is None or (exact and adds(score, places, query.dtype))):
        seen = mask
        if score is not None:
            seen = _applied(score, torch.zeros((), dtype=query.dtype, device=query.device), *places)
            seen = seen if mask is None else torch.where(mask, seen, -INFINITY)
        groups = query.size(1) != key.size(1)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=scale, enable_gqa=groups)
        return out, none, none
    scores = _scores(query, key) * scale
    if score is not None:
        scores = _applied(score, scores, *places)
    if mask is not None:
        scores = torch.where(mask, scores, -INFINITY)
    most = scores.amax(-1, keepdim=True)
    sees_none = (most == -INFINITY).detach()
    known = scores.masked_fill(sees_none, 0.0)
    weights = known.softmax(-1).masked_fill(sees_none, 0.0)
    log_sum = known.logsumexp(-1).masked_fill(sees_none.squeeze(-1), -INFINITY) if asks[0] else none
    largest = most.squeeze(-1) if asks[1] else none
    return _product(weights.to(query.dtype), value), log_sum / math.log(2), largest / math.log(2)


def _places(query: Tensor, key: Tensor) -> tuple[Tensor, ...]:
    """The numbers of batch, head, query and key, each along an axis of its own."""
    sizes = (*query.shape[:3], key.size(2))
    return tuple(
        torch.arange(n, device=query.device).view([n if at == axis else 1 for at in range(4)])
        for axis, n in enumerate(sizes)
    )


def _applied(function: Function, *given: Tensor) -> Tensor:
    """The result of a function of scores and places, which is written for one number of each, on all numbers at once.
    Raises NotOnAll if its result does not have their axes, or ones in their places."""
    shape = torch.broadcast_shapes(*(x.shape for x in given))  # type: ignore[no-untyped-call]
    try:
        result = function(*given)
    except RuntimeError as error:  # of axes that do not fit
        raise NotOnAll(function) from error
    pairs = zip(result.shape[::-1], shape[::-1], strict=False)
    if len(result.shape) > len(shape) or any(n not in (1, m) for n, m in pairs):
        raise NotOnAll(function)
    return result


def _scores(query: Tensor, key: Tensor) -> Tensor:
    """The products of queries and keys, of groups of heads too, at least in float32."""
    wide = torch.promote_types(query.dtype, torch.float32)
    query, key = query.to(wide), key.to(wide)
    if query.size(1) == key.size(1):
        return query @ key.transpose(-2, -1)
    grouped = query.unflatten(1, (key.size(1), -1))  # type: ignore[no-untyped-call]
    return torch.einsum("bhgqd,bhkd->bhgqk", grouped, key).flatten(1, 2)


def _product(weights: Tensor, value: Tensor) -> Tensor:
    if weights.size(1) == value.size(1):
        return weights @ value
    grouped = weights.unflatten(1, (value.size(1), -1))  # type: ignore[no-untyped-call]
    return torch.einsum("bhgqk,bhkd->bhgqd", grouped, value).flatten(1, 2)


# -- functions that only add to the scores -----------------------------------------------------------------------------


def adds(score_mod: Function, places: Sequence[Tensor], dtype: torch.dtype) -> bool:
    """Whether a function's result is the score plus something that does not depend on it, or `-inf`."""
    with unrecorded(), torch.no_grad(), _Sums() as sums:
        score = torch.zeros((1, 1, 1, 1), dtype=dtype, device=places[0].device)
        sums.note(score)
        return bool(sums.has(score_mod(score, *places)))


class _Sums(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows a score through operators, as long as they only add to it or replace it by `-inf`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sums: dict[int, Tensor] = {}
        self.infinite: dict[int, Tensor] = {}

    def note(self, tensor: Tensor) -> None:
        self.sums[id(tensor)] = tensor

    def has(self, item: Any) -> bool:
        """Whether a tensor is the score plus something."""
        return id(item) in self.sums

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        if self._is_sum(packet, args, kwargs or {}):
            self.note(result)
        elif (packet in FULL and -INFINITY in args) or (packet in SAME and id(args[0]) in self.infinite):
            self.infinite[id(result)] = result
        return result

    def _is_sum(self, packet: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        """Whether a call gives the score plus something."""
        known = [*map(self.has, args)]
        if sum(map(self.has, tree_leaves((args, kwargs)))) == 0:
            return False
        match packet:
            case aten.add:
                return known.count(True) == 1 and kwargs.get("alpha", 1) == 1
            case aten.sub:
                return known == [True, False] and kwargs.get("alpha", 1) == 1
            case aten.where:
                return not known[0] and all(self.has(x) or self._is_infinite(x) for x in args[1:])
            case aten.masked_fill:
                return self.has(args[0]) and self._is_infinite(args[2])
        return packet in SAME and (packet is not aten._to_copy or kwargs.get("dtype") in (None, args[0].dtype))

    def _is_infinite(self, item: Any) -> bool:
        return id(item) in self.infinite or (isinstance(item, float) and item == -INFINITY)


# -- documents in one row ----------------------------------------------------------------------------------------------


def documents_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_bounds: Tensor,
    key_bounds: Tensor | None,
    longest_query: int,
    longest_key: int,
    is_causal: bool = False,
    scale: float | None = None,
    window: Sequence[int] | None = None,
    enable_gqa: bool = False,
    *paged: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of [tokens, heads, head_dim] within documents, with the arguments and results of torch's operator
    `_varlen_attn`. As in FlashAttention, the last query and the last key of a document are at the same position."""
    if key_bounds is None or any(x is not None for x in paged[:2]):
        raise NotImplementedError("a paged cache of keys has no gradients: train without block_table and seqused_k")
    rows, columns = (_in_documents(x.size(0), b) for x, b in ((query, query_bounds), (key, key_bounds)))
    mask = rows.document[:, None] == columns.document
    before, after = (-1, 0) if is_causal else (window or (-1, -1))
    if before >= 0 or after >= 0:
        at, of = rows.position, columns.position
        if query_bounds is not key_bounds:  # from the end of a document
            at, of = at - rows.end, of - columns.end
        mask = mask & (of <= at[:, None] + after) if after >= 0 else mask
        mask = mask & (of >= at[:, None] - before) if before >= 0 else mask
    q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa)
    scores = _scores(q, k) * (query.size(-1) ** -0.5 if scale is None else scale)
    log_sum = torch.where(mask, scores, -INFINITY).logsumexp(-1)
    return out[0].transpose(0, 1), log_sum[0], torch.zeros(2, dtype=torch.uint64)


@dataclass(frozen=True)
class _Places:
    """For each token the number of its document, its position in the row, and the position where its document ends."""

    document: Tensor
    position: Tensor
    end: Tensor


def _in_documents(count: int, bounds: Tensor) -> _Places:
    """The places of `count` tokens in documents with these bounds: those of [0, 5, 9] begin at 0 and 5."""
    position = torch.arange(count, device=bounds.device)
    begun = position[:, None] >= bounds  # which documents have begun; those behind the last bound are one more
    end = torch.where(begun, count, bounds).amin(-1)
    return _Places(begun.sum(-1), position, end)
