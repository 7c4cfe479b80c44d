"""What a generated program imports: torch and the standard library only, nothing of the compiler."""

from .collectives import (
    all_gather,
    all_reduce,
    all_reduce_,
    all_to_all,
    keep_first,
    narrow,
    reduce_scatter,
    reshard,
)
from .engine import Input, Join, Output, block
from .halves import checkpoint_halves, halves
from .kernels import batch_norm_parts, cross_entropy_parts, embedding_part, first, first_time
from .moves import put, take, take_sizes
from .recompute import checkpoint
from .routed import routed_mm
from .world import group

__all__ = [
    "Input",
    "Join",
    "Output",
    "all_gather",
    "all_reduce",
    "all_reduce_",
    "all_to_all",
    "batch_norm_parts",
    "block",
    "checkpoint",
    "checkpoint_halves",
    "cross_entropy_parts",
    "embedding_part",
    "first",
    "first_time",
    "group",
    "halves",
    "keep_first",
    "narrow",
    "put",
    "reduce_scatter",
    "reshard",
    "routed_mm",
    "take",
    "take_sizes",
]
