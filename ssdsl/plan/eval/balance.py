"""`balance(OPS, S)`: operators as S runs in the order of the graph, the heaviest as light as can be."""

from itertools import accumulate
from typing import Any

from ssdsl.lang import nodes
from ssdsl.lang.suggest import listed
from ssdsl.plan.context import Context
from ssdsl.plan.errors.select import NothingSelected, TooFewUnits
from ssdsl.plan.errors.split import BadCount
from ssdsl.plan.errors.values import WrongType
from ssdsl.plan.eval.select import require_whole
from ssdsl.plan.eval.units import deepest_level, module_runs, repeated_units
from ssdsl.plan.eval.values import Selection, is_number, kind_of
from ssdsl.text.diagnostic import PlanError

GOOD_ENOUGH = 1.5  # a stage this much heavier than the mean is cut finer, if the modules are nested


def balance(ctx: Context, e: nodes.Call, value: Any, stages: Any) -> tuple[Selection, ...]:
    """The selections of the stages, none empty.

    Units are the repeated modules: the outermost, unless that leaves too few, or a stage far heavier than the mean. A
    model with too few of them is cut between any two modules.
    """
    if not isinstance(value, Selection):
        raise PlanError(WrongType(_argument(e, 0), "a selection of operators", kind_of(value), ""))
    if not is_number(stages):
        raise PlanError(WrongType(_argument(e, 1), "a whole number", kind_of(stages), ""))
    require_whole(value, e, "`balance`")
    if stages < 1:
        raise PlanError(BadCount(_argument(e, 1), stages))
    if not ctx.only_compute(value.operators):
        raise PlanError(NothingSelected(_argument(e, 0)))
    best: list[list[list[str]]] = []
    units: list[tuple[str, list[str]]] = []
    deepest = max(1, deepest_level(ctx, value.operators))
    for level in range(1, deepest + 2):
        ctx.step(e, 1 + len(value.operators) // 64)
        finest = level > deepest
        if finest and best:
            break
        units = module_runs(ctx, value.operators) if finest else repeated_units(ctx, value.operators, level)
        if len(units) < stages:
            continue
        weights = [sum(ctx.operators[n].flops + 1 for n in names) for _, names in units]
        cuts = partition(weights, stages)
        heaviest = max(sum(weights[a:b]) for a, b in cuts)
        best.append([[n for _, names in units[a:b] for n in names] for a, b in cuts])
        if heaviest <= GOOD_ENOUGH * sum(weights) / stages:
            break
    if not best:
        names = f"the units are {listed([name or _rest(ctx, run) for name, run in units])}"
        raise PlanError(TooFewUnits(e.span, len(units), stages, names))
    return tuple(Selection(frozenset(names)) for names in best[-1])


def _rest(ctx: Context, names: list[str]) -> str:
    """A run of operators outside of repeated modules, by its first."""
    return ctx.operators[names[0]].path or names[0]


def _argument(e: nodes.Call, at: int) -> Any:
    return e.arguments[at].span


def partition(weights: list[int], parts: int) -> list[tuple[int, int]]:
    """Bounds of `parts` non-empty runs whose largest sum is the least possible; among those, near to equal sums."""
    cap = _least_cap(weights, parts)
    need = _runs_needed(weights, cap)
    sums = [0, *accumulate(weights)]
    bounds, start = [], 0
    for left in range(parts, 0, -1):
        goal = (sums[-1] - sums[start]) / left
        fits = [
            end
            for end in range(start + 1, len(weights) - left + 2)
            if sums[end] - sums[start] <= cap and need[end] <= left - 1 and (left > 1 or end == len(weights))
        ]
        end = min(fits, key=lambda end: (abs(sums[end] - sums[start] - goal), end))
        bounds.append((start, end))
        start = end
    return bounds


def _least_cap(weights: list[int], parts: int) -> int:
    """The least bound on the sums with which `parts` runs suffice, by bisection."""
    low, high = max(weights), sum(weights)
    while low < high:
        middle = (low + high) // 2
        if _runs_needed(weights, middle)[0] <= parts:
            high = middle
        else:
            low = middle + 1
    return low


def _runs_needed(weights: list[int], cap: int) -> list[int]:
    """For each start, the fewest runs up to the end with sums within `cap`."""
    need = [0] * (len(weights) + 1)
    end, total = len(weights), 0
    for start in range(len(weights) - 1, -1, -1):
        total += weights[start]
        while total > cap:
            end -= 1
            total -= weights[end]
        need[start] = 1 + need[end]
    return need
