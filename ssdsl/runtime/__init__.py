"""The runtime that generated programs import. It needs torch and the standard library only, nothing of the compiler.

Names are loaded when they are first used, so that code that only computes with regions does not import torch.
"""

import importlib
from typing import Any

_NAMES = {
    "kernels.attention": "attention_keys banded_attention_part causal_attention_part",
    "kernels.compiled": "compiled",
    "kernels.compression": "decode encode",
    "random.counter_rng": "step_keys",
    "ranks.collectives": "all_gather all_reduce all_reduce_ all_to_all exchange keep_first narrow reduce_scatter "
    "reshard rows_to_all start_reshard",
    "layout.cut": "contiguous put take take_at take_sizes",
    "ranks.earlier_parts": "extend",
    "step.joins": "Input Join",
    "kernels.embedding_and_norm": "batch_norm_parts embedding_part first first_time gather_part group_norm_parts "
    "instance_norm_parts layer_norm_parts nll_part rms_norm_parts",
    "kernels.grid_sampling": "grid_sample_part",
    "kernels.indexing": "index_add_part index_part index_select_part scatter_add_part scatter_reduce_part select_part",
    "kernels.softmax_and_max": "amax_parts amin_parts argmax_parts argmin_parts cross_entropy_parts log_softmax_parts "
    "logsumexp_parts max_parts min_parts softmax_parts",
    "kernels.linear_scan": "linear_scan linear_scan_parts",
    "kernels.scan_and_topk": "cumprod_parts cumsum_parts logcumsumexp_parts topk_parts",
    "random.distributions": "attention_dropout bernoulli cauchy dropout exponential geometric integers log_normal "
    "normal uniform",
    "step.recompute": "checkpoint on_host",
    "kernels.resampling": "linear_part nearest_part",
    "kernels.ring_attention": "attention_ring",
    "kernels.own_functions": "autocasting counted tensors_of",
    "kernels.experts": "combine count_rows dispatch expert_mm routed_mm",
    "step.runner": "Output block",
    "step.split_backward": "checkpoint_halves halves",
    "kernels.windows": "Part avg_pool_part cat_part conv_part conv_transpose_part max_pool_part "
    "max_pool_with_indices_part pad_part roll_part slice_part",
    "ranks.world": "group",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
NAMES = (*_MODULES,)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
