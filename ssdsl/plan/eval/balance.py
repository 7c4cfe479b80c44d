"""`balance(OPS, S)`: divides operators into S runs in the order of the graph, so that the heaviest is as light as
possible."""

from itertools import accumulate

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.parts import BadCount
from ssdsl.plan.errors.select import NothingSelected, TooFewUnits
from ssdsl.plan.errors.values import Wanted, WrongType
from ssdsl.plan.eval.select import require_whole
from ssdsl.plan.eval.units import deepest_level, module_runs, repeated_units
from ssdsl.plan.eval.values import Selection, Value, is_whole
from ssdsl.plan.model_index import ModelIndex
from ssdsl.text.diagnostic import PlanError

GOOD_ENOUGH = 1.5  # a stage this much heavier than the mean is cut finer, if the modules are nested

Unit = tuple[str, list[str]]  # a module's path, or "" for a run of others, and its operators


def balance(ctx: Context, e: nodes.Call, given: tuple[Value, ...]) -> tuple[Selection, ...]:
    """The selections of the stages, none of them empty.

    Units are the repeated modules: the outermost, unless there are too few of them, or one stage is far heavier than
    the mean. A model with too few repeated modules is cut between any two modules. Raises PlanError if there are fewer
    modules than stages.
    """
    operators, stages = arguments(ctx, e, given, "balance")
    key = operators, stages
    if key not in ctx.model.balanced:
        ctx.model.balanced[key] = tuple(frozenset(names) for names in _balanced(ctx, e, operators, stages))
    return tuple(Selection(names) for names in ctx.model.balanced[key])


def _balanced(ctx: Context, e: nodes.Call, operators: frozenset[str], stages: int) -> list[list[str]]:
    best: list[list[str]] | None = None
    units: list[Unit] = []
    deepest = max(1, deepest_level(ctx.model, operators))
    # The last turn, one beyond the deepest level, cuts between any two modules.
    for level in range(1, deepest + 2):
        ctx.budget.spend(e, 1 + len(operators) // 12)
        if level > deepest and best is not None:
            break
        find_all = level > deepest
        units = module_runs(ctx.model, operators) if find_all else repeated_units(ctx.model, operators, level)
        if len(units) < stages:
            continue
        best, is_good = _stages(ctx, units, stages)
        if is_good:
            break
    if best is None:
        names = tuple(path or ctx.model.operators[run[0]].module for path, run in units)
        raise PlanError(TooFewUnits(e.span, names, stages))
    return best


def arguments(ctx: Context, e: nodes.Call, given: tuple[Value, ...], statement: str) -> tuple[frozenset[str], int]:
    """Whole operators, some of them placed, and a number of stages; raises PlanError."""
    value, stages = given
    operators_at, stages_at = (argument.span for argument in e.arguments[:2])
    if not isinstance(value, Selection):
        raise PlanError(WrongType(operators_at, Wanted.OPERATORS, value))
    if not is_whole(stages):
        raise PlanError(WrongType(stages_at, Wanted.WHOLE, stages))
    require_whole(ctx, value, e, statement)
    if stages < 1:
        raise PlanError(BadCount(stages_at, stages))
    if not ctx.model.only_compute(value.operators):
        raise PlanError(NothingSelected(operators_at))
    return value.operators, stages


def _stages(ctx: Context, units: list[Unit], stages: int) -> tuple[list[list[str]], bool]:
    """The operators of the stages, and whether the heaviest is near to the mean."""
    together = joined(ctx.model, units)
    units = together if len(together) >= stages else units
    weights = [sum(ctx.model.operators[n].flops + 1 for n in names) for _, names in units]
    cuts = partition(weights, stages)
    heaviest = max(sum(weights[a:b]) for a, b in cuts)
    found = [[n for _, names in units[a:b] for n in names] for a, b in cuts]
    return found, heaviest <= GOOD_ENOUGH * sum(weights) / stages


def joined(model: ModelIndex, units: list[Unit]) -> list[Unit]:
    """The units, some of them merged: no cut goes between operators that use the same changing buffer, which lives in
    one place."""
    place = {name: number for number, (_, names) in enumerate(units) for name in names}
    spans = [
        (min(at), max(at))
        for users in model.graph.users_of_changed.values()
        if (at := [place[name] for name in users if name in place])
    ]
    found: list[Unit] = []
    for number, (path, names) in enumerate(units):
        if found and any(first < number <= last for first, last in spans):
            found[-1] = found[-1][0], [*found[-1][1], *names]
        else:
            found.append((path, names))
    return found


def partition(weights: list[int], parts: int) -> list[tuple[int, int]]:
    """Bounds of `parts` non-empty runs whose largest sum is minimal; among those, the sums are nearly equal."""
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
