"""Attention of which one part runs: of a run of the queries, of some of the keys, or of both, keys going around a ring.

Of the keys in a chunk, a row of queries has an output and the logarithm of what it was divided by. Two chunks merge by
these: that is all that a device has to know of keys that it does not have (Milakov and Gimelshein 2018; Liu, Zaharia
and Abbeel 2023, "Ring Attention"). The gradients of a chunk follow from the output and the logarithm of all keys.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch.nn.attention.bias import causal_lower_right

from .merges import widened
from .regions import Regions
from .windows import Part
from .world import Group

BLOCK = 1 << 24  # scores that are in memory at once
Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def causal_attention_part(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    enable_gqa: bool,
    parts: Sequence[Part],
) -> torch.Tensor:
    """Causal attention of the queries start..end, which see the keys in front of them and their own; those behind these
    are left out.

    Of q queries and k keys: query [.., heads, q, d], key [.., heads, k, d], value [.., heads, k, v] ->
    [.., heads, q, v].
    """
    (part,) = parts
    key, value = (x.narrow(-2, 0, part.end) for x in (key, value))
    if not part.start:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=enable_gqa)
    mask = causal_lower_right(query.shape[-2], key.shape[-2])  # the fused kernels of a GPU make no mask of it
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=enable_gqa)


def attention_keys(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
    regions: Regions,
    group: Group,
) -> torch.Tensor:
    """Attention to all keys, of which each device of the group has the run `regions[group.index]`. The gradient of the
    queries is this part's addend."""
    (here,) = regions[group.index]
    chunk = _Chunk(0, here[0], is_causal, _scale(query, scale), mask)
    return _Keys.apply(query, key, value, mask, chunk, group)  # type: ignore[no-any-return, no-untyped-call]


def attention_ring(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
    regions: Regions,
    group: Group,
) -> torch.Tensor:
    """Attention of the queries `regions[group.index]`; the runs of keys and values go around the group: beside its
    own, a device has one and the one that arrives. A mask has the rows of these queries, and all columns."""
    runs = [run for (run,) in regions]
    ring = _Ring(runs, group, is_causal, _scale(query, scale))
    return _Around.apply(query, key, value, mask, ring)  # type: ignore[no-any-return, no-untyped-call]


def _scale(query: torch.Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


# -- one chunk of keys -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Chunk:
    """Keys from position `keys` on, seen by queries from position `queries` on. `mask`: of these rows and columns."""

    queries: int
    keys: int
    is_causal: bool
    scale: float
    mask: torch.Tensor | None

    def is_seen(self, rows: int) -> bool:
        """Whether any of so many queries sees any of the keys."""
        return not self.is_causal or self.keys < self.queries + rows

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The output [.., q, v] in float32 at least, and the logarithm of the sum of exponentials [.., q, 1]."""
        key, value = self._for_all(query, key), self._for_all(query, value)
        outputs, logs = [], []
        for rows in self._blocks(query, key):
            scores = self._scores(query[..., rows, :], key, rows)
            log = scores.logsumexp(-1, keepdim=True)
            chances = (scores - log.masked_fill(log.isinf(), 0.0)).exp_()
            outputs.append(chances @ widened(value))
            logs.append(log)
        return torch.cat(outputs, -2), torch.cat(logs, -2)

    def backward(
        self,
        gradient: torch.Tensor,
        output: torch.Tensor,
        log: torch.Tensor,
        query: torch.Tensor,
        keys: Sequence[torch.Tensor],
        d_mask: torch.Tensor | None,
    ) -> Triple:
        """The gradients of query, key and value, for an output and a logarithm of all keys. That of the mask is added
        to `d_mask`."""
        key, value = keys
        all_keys, all_values = self._for_all(query, key), self._for_all(query, value)
        d_query = []
        d_key = widened(all_keys).new_zeros(all_keys.shape)
        d_value = widened(all_values).new_zeros(all_values.shape)
        log = log.masked_fill(log.isinf(), 0.0)
        for rows in self._blocks(query, key):
            chances = self._scores(query[..., rows, :], all_keys, rows).sub_(log[..., rows, :]).exp_()
            given = widened(gradient[..., rows, :])
            d_value += chances.transpose(-2, -1) @ given
            of_row = (given * widened(output[..., rows, :])).sum(-1, keepdim=True)
            scores = (given @ widened(all_values).transpose(-2, -1)).sub_(of_row).mul_(chances)
            if d_mask is not None:
                part = d_mask if d_mask.dim() < 2 or d_mask.shape[-2] == 1 else d_mask[..., rows, :]
                part += scores.sum_to_size(part.shape)
            d_query.append((scores @ widened(all_keys)).mul_(self.scale))
            d_key += (scores.transpose(-2, -1) @ widened(query[..., rows, :])).mul_(self.scale)
        whole = torch.cat(d_query, -2)
        return whole, self._for_given(d_key, key), self._for_given(d_value, value)

    def _blocks(self, query: torch.Tensor, key: torch.Tensor) -> Iterator[slice]:
        """Runs of rows whose scores fit in memory."""
        step = max(1, BLOCK // max(1, math.prod(query.shape[:-2]) * key.shape[-2]))
        yield from (slice(start, start + step) for start in range(0, query.shape[-2], step))

    def _scores(self, query: torch.Tensor, key: torch.Tensor, rows: slice) -> torch.Tensor:
        scores = widened(query) @ widened(key).transpose(-2, -1) * self.scale
        if self.is_causal:
            first = self.queries + rows.start
            at = torch.arange(first, first + query.shape[-2], device=query.device)
            behind = torch.arange(self.keys, self.keys + key.shape[-2], device=query.device) > at[:, None]
            scores.masked_fill_(behind, -math.inf)
        if self.mask is not None:
            mask = self.mask if self.mask.dim() < 2 or self.mask.shape[-2] == 1 else self.mask[..., rows, :]
            scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
        return scores

    @staticmethod
    def _for_all(query: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Keys or values for each head of the queries."""
        if x.dim() > 2 and 1 < x.shape[-3] < query.shape[-3]:
            x = x.repeat_interleave(query.shape[-3] // x.shape[-3], -3)
        return x.expand(*query.shape[:-2], *x.shape[-2:])

    @staticmethod
    def _for_given(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The sum of the gradients of what was there once."""
        if x.dim() > 2 and 1 < x.shape[-3] < gradient.shape[-3]:
            gradient = gradient.unflatten(-3, (x.shape[-3], -1)).sum(-3)  # type: ignore[no-untyped-call]
        return gradient.sum_to_size(x.shape)


def _merged(
    output: torch.Tensor, log: torch.Tensor, more: torch.Tensor, more_log: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and logarithm of the keys of two chunks."""
    both = torch.logaddexp(log, more_log)
    safe = both.masked_fill(both.isinf(), 0.0)
    return output * (log - safe).exp_() + more * (more_log - safe).exp_(), both


# -- keys that stay ----------------------------------------------------------------------------------------------------


class _Keys(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        chunk: _Chunk,
        group: Group,
    ) -> torch.Tensor:
        output, log = chunk.forward(query, key, value)
        highest = log.clone()
        group.all_reduce(highest, "max")
        weight = (log - highest.masked_fill(highest.isinf(), 0.0)).exp_()
        sums = torch.cat([output * weight, weight], -1)
        group.all_reduce(sums)
        output, total = sums[..., :-1] / sums[..., -1:].clamp_min(torch.finfo(sums.dtype).tiny), sums[..., -1:]
        result = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, mask, result, highest + total.log())
        ctx.chunk = chunk
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, mask, output, log = ctx.saved_tensors
        d_mask = torch.zeros_like(mask) if mask is not None and ctx.needs_input_grad[3] else None
        found = ctx.chunk.backward(gradients[0], output, log, query, (key, value), d_mask)
        return *(x.to(query.dtype) for x in found), d_mask, None, None


# -- keys that go around -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Ring:
    """`runs`: the positions that each part has, of the queries as of the keys."""

    runs: list[tuple[int, int]]
    group: Group
    is_causal: bool
    scale: float

    def chunk(self, step: int, mask: torch.Tensor | None) -> tuple[_Chunk, int]:
        """The chunk that is here after so many steps, and whose it is."""
        mine, whose = self.group.index, (self.group.index - step) % self.group.size
        here = None if mask is None else self.columns(mask, whose)
        return _Chunk(self.runs[mine][0], self.runs[whose][0], self.is_causal, self.scale, here), whose

    def columns(self, mask: torch.Tensor, whose: int) -> torch.Tensor:
        """Those of the keys of a part."""
        start, end = self.runs[whose]
        return mask if mask.shape[-1] == 1 else mask[..., start:end]

    def passed_on(self, step: int, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What arrives from the part before, of the next chunk, when these go to the part behind."""
        start, end = self.runs[(self.group.index - step - 1) % self.group.size]
        before, behind = ((self.group.index + way) % self.group.size for way in (-1, 1))
        arrived = []
        for x in tensors:
            arriving = x.new_empty((*x.shape[:-2], end - start, x.shape[-1]))
            self.group.exchange({before: arriving}, {behind: x.contiguous()})
            arrived.append(arriving)
        return arrived


class _Around(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, ring: _Ring
    ) -> torch.Tensor:
        output = widened(query).new_zeros(*query.shape[:-1], value.shape[-1])
        log = output.new_full((*query.shape[:-1], 1), -math.inf)
        keys = [key, value]
        for step in range(ring.group.size):
            chunk, _ = ring.chunk(step, mask)
            if chunk.is_seen(query.shape[-2]):
                output, log = _merged(output, log, *chunk.forward(query, *keys))
            if step < ring.group.size - 1:
                keys = ring.passed_on(step, keys)
        result = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, mask, result, log)
        ctx.ring = ring
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, mask, output, log = ctx.saved_tensors
        ring: _Ring = ctx.ring
        keys, d_keys = [key, value], [torch.zeros_like(widened(x)) for x in (key, value)]
        d_query = torch.zeros_like(widened(query))
        d_mask = torch.zeros_like(mask) if mask is not None and ctx.needs_input_grad[3] else None
        for step in range(ring.group.size):
            chunk, whose = ring.chunk(step, mask)
            if chunk.is_seen(query.shape[-2]):
                columns = None if d_mask is None else ring.columns(d_mask, whose)
                of_query, *of_keys = chunk.backward(gradients[0], output, log, query, keys, columns)
                d_query += of_query
                d_keys = [so_far + more for so_far, more in zip(d_keys, of_keys, strict=True)]
            d_keys = ring.passed_on(step, d_keys)  # at last they are at home
            if step < ring.group.size - 1:
                keys = ring.passed_on(step, keys)
        d_key, d_value = (x.to(key.dtype) for x in d_keys)
        return d_query.to(query.dtype), d_key, d_value, d_mask, None
