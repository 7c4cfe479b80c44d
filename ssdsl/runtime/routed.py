"""A product in which every row has the weights of its own expert."""

from collections.abc import Iterator
from typing import Any

import torch


class _RoutedMm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        order, counts = _by_expert(experts, weights.shape[0])
        ctx.counts = counts
        needs = ctx.needs_input_grad
        ctx.save_for_backward(rows if needs[1] else None, weights if needs[0] else None, order)
        result = rows.new_zeros(rows.shape[0], weights.shape[2])
        for expert, mine in _routes(order, counts):
            result[mine] = rows[mine] @ weights[expert]
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, weights, order = ctx.saved_tensors
        (gradient,) = gradients
        of_rows = of_weights = None
        if weights is not None:
            of_rows = gradient.new_zeros(gradient.shape[0], weights.shape[1])
            for expert, mine in _routes(order, ctx.counts):
                of_rows[mine] = gradient[mine] @ weights[expert].T
        if rows is not None:
            of_weights = rows.new_zeros(len(ctx.counts), rows.shape[1], gradient.shape[1])
            for expert, mine in _routes(order, ctx.counts):
                of_weights[expert] = rows[mine].T @ gradient[mine]
        return of_rows, of_weights, None


def _by_expert(experts: torch.Tensor, count: int) -> tuple[torch.Tensor, list[int]]:
    """The rows in the order of their experts, and how many each of the first `count` has; other experts come last."""
    known = experts.where((experts >= 0) & (experts < count), count)
    order = known.argsort(stable=True)
    return order, torch.bincount(known, minlength=count + 1)[:count].tolist()


def _routes(order: torch.Tensor, counts: list[int]) -> Iterator[tuple[int, torch.Tensor]]:
    """Each expert that has rows, with these."""
    start = 0
    for expert, count in enumerate(counts):
        if count:
            yield expert, order[start : start + count]
        start += count


def routed_mm(rows: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor, start: int = 0) -> torch.Tensor:
    """Each row times the weights of its expert; zeros where the expert is none of those from `start`, so parts add up.

    rows [n, in], weights [experts of this part, in, out], experts [n] -> [n, out].
    """
    return _RoutedMm.apply(rows, weights, experts - start)  # type: ignore[no-any-return, no-untyped-call]


def dispatch(rows: torch.Tensor, experts: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """The rows whose expert is one of `own`, consecutive numbers, in the order in which they stand."""
    return rows.index_select(0, _mine(experts, own))


def combine(rows: torch.Tensor, experts: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """What `dispatch` picked, where it was; zeros where the expert is none of `own`."""
    whole = rows.new_zeros(experts.shape[0], *rows.shape[1:])
    return whole.index_put((_mine(experts, own),), rows)  # which keeps the places alone


def _mine(experts: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    return ((experts >= own[0]) & (experts <= own[-1])).nonzero().flatten()


def expert_mm(rows: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Each row times the weights of its expert; `weights` are those of the experts `own`."""
    return _RoutedMm.apply(rows, weights, experts - own[0])  # type: ignore[no-any-return, no-untyped-call]
