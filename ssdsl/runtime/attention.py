"""Attention of which one part runs: of a run of the queries, or of some of the keys."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right

from .windows import Part


def causal_attention_part(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    enable_gqa: bool,
    parts: Sequence[Part],
) -> torch.Tensor:
    """Causal attention of the queries start..end, which see the keys in front of them and their own.

    Of q queries and k keys: query [.., heads, q, d], key [.., heads, k, d], value [.., heads, k, v] ->
    [.., heads, q, v].
    """
    (part,) = parts
    if not part.start:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=enable_gqa)
    mask = causal_lower_right(query.shape[-2], key.shape[-2])  # the fused kernels of a GPU make no mask of it
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=enable_gqa)
