"""Linear algebra without checks: where torch raises for a matrix that has no inverse, or is not positive definite, the
results for this matrix are NaN, and with them the loss, for which a run ends.

A check would have to stop all devices, and is no operator of a graph.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _marking(unchecked: Callable[..., Any]) -> Callable[..., Any]:
    """A function that computes as `unchecked`, whose last result says which matrices have failed; these are NaN."""

    def marking(a: Tensor, *args: Any, **options: Any) -> Any:
        first, *others, info = unchecked(a, *args, **options)
        inner = first.dim() - max(info.dim(), first.dim() - 2)  # axes of one result: 1 if it is a vector
        failed = (info != 0).reshape(*info.shape, *[1] * inner)
        marked = first.masked_fill(failed, torch.nan)
        return (marked, *others) if others else marked

    return marking


INVERSE = _marking(torch.linalg.inv_ex)
UNCHECKED = {
    aten.inverse.default: INVERSE,
    aten.linalg_inv.default: INVERSE,
    aten.linalg_solve.default: _marking(torch.linalg.solve_ex),
    aten.linalg_cholesky.default: _marking(torch.linalg.cholesky_ex),
    aten.linalg_lu_factor.default: _marking(torch.linalg.lu_factor_ex),
}
