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

from collections.abc import Hashable, Iterator
from typing import Any

import torch

from ..ranks.numbers import has_numbers, read_rows
from .own_gradient import Gradients, with_gradient

KEPT = "ssdsl_counts"  # the attribute of a tensor of experts for counts of their rows


def _by_expert(experts: torch.Tensor, start: int, count: int) -> tuple[torch.Tensor, list[int]]:
    """The order of rows sorted by expert, and the number of rows of each of the `count` experts from `start`; rows of
    other experts come last."""
    local = experts - start
    known = local.where((local >= 0) & (local < count), count)
    counts = []
    if has_numbers(known):
        kept = _kept(experts)
        if (start, count) not in kept:
            kept[start, count] = None, _count(known, count + 1)[:count]
        (counts,) = read_rows(kept[start, count][1])
    return known.argsort(stable=True), counts


def _count(numbers: torch.Tensor, size: int) -> torch.Tensor:
    """How often each number below `size` is there. `bincount` would read the largest number."""
    numbers = numbers.long()
    return numbers.new_zeros(size).scatter_add_(0, numbers, torch.ones_like(numbers))


def _kept(experts: torch.Tensor) -> dict[Hashable, tuple[Any, torch.Tensor]]:
    """Counts of the rows of these experts, which are kept with them: so the host reads them once, whoever needs them.
    The keys are the identities of tensors, which are kept beside the counts, or ranges of experts."""
    return vars(experts).setdefault(KEPT, {})  # type: ignore[no-any-return]


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
        for expert in {*range(of_weights.shape[0])}.difference(e for e, _ in ctx.runs):
            of_weights[expert] = 0
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
    order, counts = _by_expert(experts, start, weights.shape[0])
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
    counts = _count(places.flatten(), (count + 1) * runs)[: count * runs]
    _kept(experts)[id(own)] = own, counts
    return counts


def dispatch(rows: torch.Tensor, experts: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """The rows whose expert is in `own` (ascending), sorted by expert."""
    order = _order(experts, own)
    return rows.index_select(0, order[: _number(experts, own)] if has_numbers(experts) else order)


def combine(rows: torch.Tensor, experts: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """The inverse of `dispatch`: rows at their original places, zeros where the expert is not in `own`."""
    whole = rows.new_zeros(experts.shape[0], *rows.shape[1:])
    order = _order(experts, own)[: rows.shape[0]]
    return whole.index_put((order,), rows)  # which saves only the places for backward


def _order(experts: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """The places of the rows of the experts `own`, sorted by expert, and then those of all other rows."""
    return _among(experts, own).argsort(stable=True)


def _number(experts: torch.Tensor, own: torch.Tensor) -> int:
    """The number of rows of the experts `own`, which `count_rows` has mostly counted before."""
    counted = _kept(experts).get(id(own))
    counts = count_rows(experts, own, max(experts.shape[0], 1)) if counted is None else counted[1]
    return sum(*read_rows(counts))


def _among(experts: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """The index of each expert in `own` (ascending); len(own) if it is not there."""
    place = torch.searchsorted(own, experts)
    return place.where(own[place.clamp(max=own.shape[0] - 1)] == experts, own.shape[0])


def expert_mm(rows: torch.Tensor, weights: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Each row times the weights of its expert, for rows sorted by expert, in runs of these lengths.

    rows [n, in], weights [experts, in, out], counts [experts * runs of each] -> [n, out].
    """
    if not has_numbers(counts):
        return _mm(rows, weights, [], None)
    (runs,) = read_rows(counts)
    each = len(runs) // weights.shape[0]
    return _mm(rows, weights, [sum(runs[n * each : (n + 1) * each]) for n in range(weights.shape[0])], None)
