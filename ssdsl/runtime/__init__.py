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
from .kernels import batch_norm_parts, embedding_part, first, first_time, gather_part, nll_part
from .merges import (
    amax_parts,
    amin_parts,
    argmax_parts,
    argmin_parts,
    cross_entropy_parts,
    log_softmax_parts,
    logsumexp_parts,
    max_parts,
    min_parts,
    softmax_parts,
)
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
from .windows import Part, conv_part
from .world import group

__all__ = [
    "Input",
    "Join",
    "Output",
    "Part",
    "all_gather",
    "all_reduce",
    "all_reduce_",
    "all_to_all",
    "amax_parts",
    "amin_parts",
    "argmax_parts",
    "argmin_parts",
    "attention_dropout",
    "batch_norm_parts",
    "bernoulli",
    "block",
    "cauchy",
    "checkpoint",
    "checkpoint_halves",
    "conv_part",
    "cross_entropy_parts",
    "dropout",
    "embedding_part",
    "exchange",
    "exponential",
    "first",
    "first_time",
    "gather_part",
    "geometric",
    "group",
    "halves",
    "integers",
    "keep_first",
    "log_normal",
    "log_softmax_parts",
    "logsumexp_parts",
    "max_parts",
    "min_parts",
    "narrow",
    "nll_part",
    "normal",
    "put",
    "reduce_scatter",
    "reshard",
    "routed_mm",
    "softmax_parts",
    "step_keys",
    "take",
    "take_at",
    "take_sizes",
    "uniform",
]
