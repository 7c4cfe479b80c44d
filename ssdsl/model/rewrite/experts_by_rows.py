"""A mixture's experts, for any mixture of transformers: `routed_mm` takes rows in any order, each with its expert.

transformers sorts a mixture's rows by expert, so that each expert has a run of rows, and afterwards undoes the sort.
The sort needs all rows at once, so no plan could split it. But transformers has a registry of functions that compute
the experts, with the same results; while a model is captured, all of them are the one below.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

Tensor = torch.Tensor


@contextlib.contextmanager
def experts_by_rows() -> Iterator[None]:
    """A context in which mixtures of transformers compute their experts by `routed_mm`, unless by a user's function."""
    library: Any = sys.modules.get("transformers.integrations.moe")
    if library is None:
        yield
        return
    functions = library.ALL_EXPERTS_FUNCTIONS
    local = dict(functions._local_mapping)
    its = [name for name, function in functions.items() if function.__module__.startswith("transformers.")]
    functions._local_mapping.update(dict.fromkeys((*its, "eager"), computed))
    try:
        yield
    finally:
        functions._local_mapping.clear()
        functions._local_mapping.update(local)


def computed(module: Any, x: Tensor, top: Tensor, weight: Tensor) -> Tensor:
    """The weighted sums of the experts of each token: x [token, width], top and weight [token, chosen] -> x."""
    (tokens, chosen), width, ids = top.shape, x.shape[1], top.reshape(-1)
    rows = x[:, None].expand(tokens, chosen, width).reshape(tokens * chosen, width)
    up = _products(module, "gate_up_proj" if module.has_gate else "up_proj", rows, ids)
    y = _products(module, "down_proj", module._apply_gate(up) if module.has_gate else module.act_fn(up), ids)
    if module.has_post_expert_norm:
        y = module.post_expert_norm(y)
    y = y * weight.reshape(-1, 1)
    return y.view(tokens, chosen, width).sum(1).to(x.dtype)


def _products(module: Any, name: str, rows: Tensor, ids: Tensor) -> Tensor:
    """Each row times the matrix of its expert, plus the expert's bias; under autocast in the type of the weights."""
    weights = getattr(module, name)
    matrices = weights if module.is_transposed else weights.transpose(-2, -1)
    y: Tensor = torch.ops.ssdsl.routed_mm(rows.to(weights.dtype), matrices, ids)
    return y + getattr(module, f"{name}_bias")[ids] if module.has_bias else y
