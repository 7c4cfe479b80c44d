"""Attention split over queries or over keys (over both: `ring_attention.py`).

For the keys of one chunk, a row of queries has an output and the logarithm of its softmax denominator. Two chunks merge
by these two, so a device needs nothing else of keys that it does not have (Milakov and Gimelshein 2018). The gradients
of a chunk follow from the output and the logarithm of all keys.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import _disable_current_modes

from ..layout.regions import Regions, Run, Runs, length, local, reach
from ..ranks.world import Group, note_source
from .own_gradient import Gradients, with_gradient
from .softmax_and_max import widened
from .windows import Part

SCORES = 1 << 24  # the most scores in memory at once
STEPS, ROWS = 8, 16  # steps into which rows are cut along the diagonal of causal attention, if there are so many rows
FUSED: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FUSED_BACK: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
Tensors = Sequence[torch.Tensor]


def causal_attention_part(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    enable_gqa: bool,
    parts: Sequence[Part],
    scale: float | None = None,
) -> torch.Tensor:
    """Causal attention of one or more runs of queries. Keys behind a run are left out of its computation.

    With q queries and k keys: query [.., heads, q, d], key [.., heads, k, d], value [.., heads, k, v] -> [.., heads, q,
    v].
    """
    (part,) = parts
    results, before = [], 0
    for start, end in part.results:
        here, before = query.narrow(-2, before, end - start), before + end - start
        keys, values = (x.narrow(-2, 0, end) for x in (key, value))
        mask = _lower_right(end - start, end, query) if start else None
        given: Any = {"attn_mask": mask, "is_causal": not start, "scale": scale, "enable_gqa": enable_gqa}
        results.append(F.scaled_dot_product_attention(here, keys, values, **given))
    return torch.cat(results, -2) if len(results) > 1 else results[0]


def banded_attention_part(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    enable_gqa: bool,
    band: Sequence[int],
    parts: Sequence[Part],
    scale: float | None = None,
) -> torch.Tensor:
    """Attention of one or more runs of queries, which see `band` = (before, after) keys around their own at most.

    Keys and values are those that the runs reach. With q queries, k of these keys, and n keys in all: query [.., heads,
    q, d], key [.., heads, k, d], value [.., heads, k, v], mask [.., q, n] -> [.., heads, q, v].
    """
    (part,) = parts
    given, results, before = part.reads(key.shape[-2], band), [], 0
    for run in part.results:
        rows = slice(before, before := before + run[1] - run[0])
        ((start, end),) = reach((run,), part.size, *band)
        ((first, last),) = local(((start, end),), given)
        here = query[..., rows, :], key[..., first:last, :], value[..., first:last, :]
        seen = mask[..., rows, start:end]
        results.append(F.scaled_dot_product_attention(*here, attn_mask=seen, scale=scale, enable_gqa=enable_gqa))
    return torch.cat(results, -2) if len(results) > 1 else results[0]


def _lower_right(queries: int, keys: int, query: torch.Tensor) -> torch.Tensor:
    """The mask [queries, keys] of causal attention for the last queries: the last one sees all keys. GPUs have fused
    kernels for torch's own form of it; that form is a subclass, which dispatch modes must not see made. On a CPU the
    scores get it as addends, which autograd would keep: backward makes them again."""
    if query.device.type == "cpu":
        source = _LowerRight(queries, keys, query.dtype)
        mask = source.made_again()
        note_source(mask, source)
        return mask
    from torch.nn.attention.bias import causal_lower_right  # imports torch's compiler, 70 MB

    with _disable_current_modes():
        return causal_lower_right(queries, keys)


@dataclass(frozen=True)
class _LowerRight:
    """A mask of causal attention that is made from its sizes: zeros where a query sees a key."""

    queries: int
    keys: int
    dtype: torch.dtype

    def made_again(self) -> torch.Tensor:
        unseen = torch.full((self.queries, self.keys), -math.inf, dtype=self.dtype)
        return unseen.triu_(self.keys - self.queries + 1)


def scale_of(query: torch.Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


# -- some queries and some keys ----------------------------------------------------------------------------------------


class _Block(NamedTuple):
    """A block of scores: rows of queries and columns of keys. Either all rows see all columns; or the first row sees so
    many, and each further row one more."""

    rows: slice
    columns: slice
    seen: int | None = None

    @property
    def size(self) -> tuple[int, int]:
        """The numbers of rows and columns."""
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start


@dataclass(frozen=True)
class Attending:
    """The attention of queries to keys at these positions, which are concatenated runs."""

    queries: Runs
    keys: Runs
    is_causal: bool
    scale: float

    def attend(self, query: torch.Tensor, keys: Tensors, mask: torch.Tensor | None, so_far: Tensors) -> None:
        """Merges the contribution of these keys into `so_far`, the output and the logarithm. `mask` has these rows and
        columns."""
        is_fused = mask is None and _may_be_fused(query, keys)
        for block in self._blocks() if is_fused else self._steps(query):
            rows = query[..., block.rows, :]
            key, value = (_for_all(rows, x[..., block.columns, :]) for x in keys)
            if is_fused:
                more, log = FUSED(
                    *map(_in_rows, (rows, key, value)), is_causal=block.seen is not None, scale=self.scale
                )
                more, log = widened(more), log.unsqueeze(-1)
            else:
                scores = self._scores(rows, key, block, mask)
                log = scores.logsumexp(-1, keepdim=True)
                more = scores.sub_(log.masked_fill(log.isinf(), 0.0)).exp_() @ widened(value)
            _merge([x[..., block.rows, :] for x in so_far], [more, log])

    def attend_back(
        self,
        query: torch.Tensor,
        keys: Tensors,
        mask: torch.Tensor | None,
        found: Tensors,
        gradients: Tensors,
        d_mask: torch.Tensor | None,
    ) -> None:
        """Adds the gradients of query, key and value to `gradients`, and that of the mask to `d_mask`. `found`: the
        gradient of the output, the output, and the logarithm of all keys."""
        is_fused = mask is None and _may_be_fused(query, keys)
        for block in self._blocks() if is_fused else self._steps(query):
            rows, (given, output, log) = query[..., block.rows, :], (x[..., block.rows, :] for x in found)
            key, value = (_for_all(rows, x[..., block.columns, :]) for x in keys)
            if is_fused:
                saved = map(_in_rows, (given, rows, key, value, output))
                more = FUSED_BACK(*saved, log.squeeze(-1), 0.0, block.seen is not None, scale=self.scale)
            else:
                chances = self._scores(rows, key, block, mask).sub_(log.masked_fill(log.isinf(), 0.0)).exp_()
                given = widened(given)
                d_value = chances.transpose(-2, -1) @ given
                of_row = (given * widened(output)).sum(-1, keepdim=True)
                scores = (given @ widened(value).transpose(-2, -1)).sub_(of_row).mul_(chances)
                if d_mask is not None:
                    part = _of(d_mask, block)
                    part += scores.sum_to_size(part.shape)
                d_query = (scores @ widened(key)).mul_(self.scale)
                more = d_query, (scores.transpose(-2, -1) @ widened(rows)).mul_(self.scale), d_value
            places = block.rows, block.columns, block.columns
            for gradient, place, added in zip(gradients, places, more, strict=True):
                part = gradient[..., place, :]
                part += _for_given(added, part)

    def _blocks(self) -> Iterator[_Block]:
        """Blocks of the scores that rows see: whole rectangles, or triangles on the diagonal."""
        if not self.is_causal:
            count, width = length(self.queries), length(self.keys)
            if count and width:
                yield _Block(slice(0, count), slice(0, width))
            return
        before = 0
        for first, last in self.queries:
            columns = 0
            for start, end in self.keys:
                for rows, keys in self._seen((first, last), (start, end)):
                    if rows[0] < rows[1] and keys[0] < keys[1]:
                        (low, high), (left, right) = rows, keys
                        here = slice(before + low - first, before + high - first)
                        there = slice(columns + left - start, columns + right - start)
                        yield _Block(here, there, 1 if right > low else None)
                columns += end - start
            before += last - first

    def _seen(self, rows: Run, keys: Run) -> Iterator[tuple[Run, Run]]:
        """Pairs of runs of rows and keys that see each other; a run and itself see each other up to the diagonal."""
        (first, last), (start, end) = rows, keys
        both = max(first, start), min(last, end)
        yield (max(first, end), last), keys
        if both[0] < both[1]:
            yield both, (start, both[0])
            yield both, both

    def _steps(self, query: torch.Tensor) -> Iterator[_Block]:
        """Blocks whose scores fit in memory. Along the diagonal few scores are computed that the mask hides."""
        for rows, columns, seen in self._blocks():
            count, width = rows.stop - rows.start, columns.stop - columns.start
            step = max(1, SCORES // max(1, math.prod(query.shape[:-2]) * width))
            if seen is not None:
                step = min(step, max(ROWS, -(-count // STEPS)))
            for row in range(0, count, step):
                to = min(row + step, count)
                here = slice(rows.start + row, rows.start + to)
                if seen is None:
                    yield _Block(here, columns)
                else:
                    yield _Block(here, slice(columns.start, columns.start + to), row + 1)

    def _scores(self, query: torch.Tensor, key: torch.Tensor, block: _Block, mask: torch.Tensor | None) -> torch.Tensor:
        scores = (widened(query) @ widened(key).transpose(-2, -1)).mul_(self.scale)
        if block.seen is not None:
            hidden = torch.ones(block.size, dtype=torch.bool, device=query.device).triu(block.seen)
            scores.masked_fill_(hidden, -math.inf)
        if mask is not None:
            here = _of(mask, block)
            scores = scores.masked_fill_(~here, -math.inf) if here.dtype == torch.bool else scores.add_(here)
        return scores


def _may_be_fused(query: torch.Tensor, keys: Tensors) -> bool:
    """Whether PyTorch's fused kernel, which never has all scores in memory, takes these tensors."""
    return query.device.type == "cpu" and query.dim() == 4 and all(x.shape[-1] == query.shape[-1] for x in keys)


def _in_rows(x: torch.Tensor) -> torch.Tensor:
    """A tensor whose last axis is dense, as the fused kernel requires."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _of(mask: torch.Tensor, block: _Block) -> torch.Tensor:
    """The block of a mask; axes of size one are broadcast."""
    if mask.dim() > 1 and mask.shape[-2] > 1:
        mask = mask[..., block.rows, :]
    return mask[..., block.columns] if mask.dim() and mask.shape[-1] > 1 else mask


def _for_all(query: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Repeats keys or values so that each head of the queries has its own."""
    if x.dim() > 2 and 1 < x.shape[-3] < query.shape[-3]:
        x = x.repeat_interleave(query.shape[-3] // x.shape[-3], -3)
    return x.expand(*query.shape[:-2], *x.shape[-2:])


def _for_given(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Sums the gradients of repeated heads."""
    if x.dim() > 2 and 1 < x.shape[-3] < gradient.shape[-3]:
        gradient = gradient.unflatten(-3, (x.shape[-3], -1)).sum(-3)  # type: ignore[no-untyped-call]
    return gradient.sum_to_size(x.shape)


def nothing(query: torch.Tensor, value: torch.Tensor) -> list[torch.Tensor]:
    """The output and the logarithm for zero keys."""
    output = widened(query).new_zeros(*query.shape[:-1], value.shape[-1])
    return [output, output.new_full((*query.shape[:-1], 1), -math.inf)]


def _merge(so_far: Tensors, more: Tensors) -> None:
    """Merges the outputs and logarithms of other keys into `so_far`."""
    (output, log), (more_output, more_log) = so_far, more
    both = torch.logaddexp(log, more_log)
    safe = both.masked_fill(both.isinf(), 0.0)
    output.mul_((log - safe).exp_()).add_(more_output.mul_((more_log - safe).exp_()))
    log.copy_(both)


# -- keys that stay ----------------------------------------------------------------------------------------------------


def _keys_gradients(ctx: Any, given: torch.Tensor) -> Gradients:
    query, key, value, mask, output, log = ctx.saved_tensors
    d_mask = torch.zeros_like(mask) if mask is not None and ctx.needs_input_grad[3] else None
    found = [torch.zeros_like(widened(x)) for x in (query, key, value)]
    ctx.part.attend_back(query, (key, value), mask, (given, output, log), found, d_mask)
    return *(x.to(query.dtype) for x in found), d_mask


@with_gradient(_keys_gradients)
def attention_keys(
    ctx: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    regions: Regions,
    group: Group,
    scale: float | None = None,
    queries: Runs | None = None,
) -> torch.Tensor:
    """Attention to all keys, with the keys split: each device of the group has those at `regions[group.index]`, and the
    same `queries`, by default all. The gradient of the queries is this part's addend."""
    rows = queries or ((0, query.shape[-2]),)
    ctx.part = Attending(rows, regions[group.index], is_causal, scale_of(query, scale))
    so_far = nothing(query, value)
    ctx.part.attend(query, (key, value), mask, so_far)
    output, log = merged(so_far, group)
    result = output.to(query.dtype)
    ctx.save_for_backward(query, key, value, mask, result, log)
    return result


def merged(so_far: Tensors, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and the logarithm of all keys, from those of the keys that each device of a group has."""
    output, log = so_far
    highest = log.clone()
    group.all_reduce(highest, "max")
    weight = (log - highest.masked_fill(highest.isinf(), 0.0)).exp_()
    sums = torch.cat([output * weight, weight], -1)
    group.all_reduce(sums)
    output, total = sums[..., :-1] / sums[..., -1:].clamp_min(torch.finfo(sums.dtype).tiny), sums[..., -1:]
    return output, highest + total.log()
