"""Mixture of experts: sorting rows of tokens by their expert, and products of each row with its expert's weights.

`routed_mm` takes rows in any order, with the expert of each row. The others work on rows sorted by expert: the rows of
the first expert, then those of the second, each in their original order. So there is a run of rows for each pair of an
expert and a sample (or other outermost dimension of the rows). A run may be empty; `count_rows` returns the lengths.

    >>> experts, own = torch.tensor([1, 0, 1, 7, 1, 1]), torch.tensor([0, 1])       # three rows of each of two samples
    >>> dispatch(torch.arange(6), experts, own).tolist(), count_rows(experts, own, 3).tolist()
    ([1, 0, 2, 4, 5], [1, 0, 2, 2])
    >>> combine(torch.tensor([1, 0, 2, 4, 5]), experts, own).tolist()               # row 3, of expert 7, is zero
    [0, 1, 2, 0, 4, 5]
"""

from collections.abc import Iterator
from typing import Any

import torch

from .numbers import has_numbers
from .own_gradient import Gradients, with_gradient


def _by_expert(experts: torch.Tensor, count: int) -> tuple[torch.Tensor, list[int]]:
    """The order of rows sorted by expert, and the number of rows of each of the first `count` experts; rows of other
    experts come last."""
    known = experts.where((experts >= 0) & (experts < count), count)
    counts = torch.bincount(known, minlength=count + 1)[:count].tolist() if has_numbers(known) else []
    return known.argsort(stable=True), counts


def _runs(counts: list[int]) -> Iterator[tuple[int, slice]]:
    """Each expert that has rows, with their slice of the order."""
    start = 0
    for expert, count in enumerate(counts):
        if count:
            yield expert, slice(start, start + count)
        start += count


def _mm_gradients(ctx: Any, gradient: torch.Tensor) -> Gradients:
    rows, weights, order = ctx.saved_tensors
    of_rows = None if weights is None else _products(gradient, weights.mT, ctx.runs, order)
    of_weights = None
    if rows is not None:
        of_weights = torch.empty_like(ctx.form, device=rows.device)
        of_weights[sorted({*range(of_weights.shape[0])}.difference(e for e, _ in ctx.runs))] = 0
        for expert, run in ctx.runs:
            own = run if order is None else order[run]
            torch.mm(rows[own].T, gradient[own], out=of_weights[expert])
    return of_rows, of_weights


@with_gradient(_mm_gradients)
def _mm(
    ctx: Any, rows: torch.Tensor, weights: torch.Tensor, counts: list[int], order: torch.Tensor | None
) -> torch.Tensor:
    """Each row times the weights of its expert, for runs of rows with these lengths, which are in an order or sorted;
    zeros for rows behind the runs."""
    ctx.form = torch.empty_like(weights, device="meta")  # a gradient with its weight's layout can be added at once
    ctx.runs = list(_runs(counts))
    needs = ctx.needs_input_grad
    ctx.save_for_backward(rows if needs[1] else None, weights if needs[0] else None, order)
    return _products(rows, weights, ctx.runs, order)


def _products(
    rows: torch.Tensor, weights: torch.Tensor, runs: list[tuple[int, slice]], order: torch.Tensor | None
) -> torch.Tensor:
    result = rows.new_zeros(rows.shape[0], weights.shape[2])
    for expert, run in runs:
        if order is None:
            torch.mm(rows[run], weights[expert], out=result[run])
        else:
            result[order[run]] = rows[order[run]] @ weights[expert]
    return result


def routed_mm(rows: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor, start: int = 0) -> torch.Tensor:
    """Each row times the weights of its expert; zeros for experts that are not in this part, which has those from
    `start`. The parts' results add up.

    rows [n, in], weights [experts of this part, in, out], experts [n] -> [n, out].
    """
    order, counts = _by_expert(experts - start, weights.shape[0])
    return _mm(rows, weights, counts, order)


# -- rows sorted by expert -------------------------------------------------------------------------------------------


def count_rows(experts: torch.Tensor, own: torch.Tensor, each: int) -> torch.Tensor:
    """The number of rows for each of the experts `own` (ascending), in each run of `each` rows.

    experts [n] -> [experts of `own` * (n / each)], int64.
    """
    count, runs = own.shape[0], experts.shape[0] // each
    if not has_numbers(experts):
        return experts.new_empty(count * runs)
    places = _among(experts, own).view(runs, each) * runs + torch.arange(runs, device=own.device)[:, None]
    return torch.bincount(places.flatten(), minlength=(count + 1) * runs)[: count * runs]


def dispatch(rows: torch.Tensor, experts: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """The rows whose expert is in `own` (ascending), sorted by expert."""
    return rows.index_select(0, _order(experts, own))


def combine(rows: torch.Tensor, experts: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """The inverse of `dispatch`: rows at their original places, zeros where the expert is not in `own`."""
    whole = rows.new_zeros(experts.shape[0], *rows.shape[1:])
    return whole.index_put((_order(experts, own),), rows)  # which saves only the places for backward


def _order(experts: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """The places of the rows of the experts `own`, sorted by expert; all places, if the rows have no numbers."""
    known = _among(experts, own)
    order = known.argsort(stable=True)
    return order[: int((known < own.shape[0]).sum())] if has_numbers(order) else order


def _among(experts: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """The index of each expert in `own` (ascending); len(own) if it is not there."""
    place = torch.searchsorted(own, experts)
    return place.where(own[place.clamp(max=own.shape[0] - 1)] == experts, own.shape[0])


def expert_mm(rows: torch.Tensor, weights: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Each row times the weights of its expert, for rows sorted by expert, in runs of these lengths.

    rows [n, in], weights [experts, in, out], counts [experts * runs of each] -> [n, out].
    """
    lengths = counts.view(weights.shape[0], -1).sum(1).tolist() if has_numbers(counts) else []
    return _mm(rows, weights, lengths, None)
