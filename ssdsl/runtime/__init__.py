"""What a generated program imports: torch and the standard library only, nothing of the compiler."""

from .bits import step_keys
from .collectives import (
    all_gather,
    all_reduce,
    all_reduce_,
    all_to_all,
    exchange,
    keep_first,
    narrow,
    reduce_scatter,
    reshard,
)
from .halves import checkpoint_halves, halves
from .kernels import batch_norm_parts, cross_entropy_parts, embedding_part, first, first_time
from .moves import put, take, take_at, take_sizes
from .random import (
    attention_dropout,
    bernoulli,
    cauchy,
    dropout,
    exponential,
    geometric,
    integers,
    log_normal,
    normal,
    uniform,
)
from .recompute import checkpoint
from .routed import routed_mm
from .runner import Input, Join, Output, block
from .windows import (
    Part,
    adaptive_avg_pool_part,
    adaptive_max_pool_part,
    avg_pool_part,
    conv_part,
    conv_transpose_part,
    linear_part,
    max_pool_part,
    max_pool_with_indices_part,
    nearest_part,
)
from .world import group

__all__ = [
    "Input",
    "Join",
    "Output",
    "Part",
    "adaptive_avg_pool_part",
    "adaptive_max_pool_part",
    "all_gather",
    "all_reduce",
    "all_reduce_",
    "all_to_all",
    "attention_dropout",
    "avg_pool_part",
    "batch_norm_parts",
    "bernoulli",
    "block",
    "cauchy",
    "checkpoint",
    "checkpoint_halves",
    "conv_part",
    "conv_transpose_part",
    "cross_entropy_parts",
    "dropout",
    "embedding_part",
    "exchange",
    "exponential",
    "first",
    "first_time",
    "geometric",
    "group",
    "halves",
    "integers",
    "keep_first",
    "linear_part",
    "log_normal",
    "max_pool_part",
    "max_pool_with_indices_part",
    "narrow",
    "nearest_part",
    "normal",
    "put",
    "reduce_scatter",
    "reshard",
    "routed_mm",
    "step_keys",
    "take",
    "take_at",
    "take_sizes",
    "uniform",
]
