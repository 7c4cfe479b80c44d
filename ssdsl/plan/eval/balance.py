"""`balance(OPS, S)`: divides operators into S runs in the order of the graph, so that the heaviest is as light as
possible; `balance(OPS, [4, 2, 2])` into runs that are as near as possible to these shares of the work."""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from math import gcd, lcm

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.parts import BadCount, BadShare
from ssdsl.plan.errors.select import NothingSelected, TooFewUnits
from ssdsl.plan.errors.values import Wanted, WrongType, places_of, required
from ssdsl.plan.eval.select import require_whole
from ssdsl.plan.eval.units import deepest_level, module_runs, repeated_units
from ssdsl.plan.model_index import ModelIndex, Stages
from ssdsl.plan.values import Number, Selection, Value, is_number, is_selection, is_whole
from ssdsl.text.diagnostic import PlanError

LIGHT = 0.05  # of the heaviest unit
GOOD_ENOUGH = 1.5  # a stage this much heavier than the mean is cut finer, if the modules are nested

Unit = tuple[str, list[str]]  # a module's path, or "" for a run of others, and its operators


def balance(ctx: Context, e: nodes.Call, given: tuple[Value, ...]) -> tuple[Selection, ...]:
    """The selections of the stages, in order, none of them empty.

    Units are the repeated modules: the outermost, unless there are too few of them, or one stage is far heavier than
    the mean. A model is cut between any two modules if it has too few repeated ones, or if only then no stage is far
    heavier than the mean. Raises PlanError if there are fewer modules than stages.
    """
    operators, stages = arguments(ctx, e, given, "balance")
    key = operators, stages
    if key not in ctx.model.balanced:
        ctx.model.balanced[key] = tuple(frozenset(names) for names in _balanced(ctx, e, operators, stages))
    return tuple(Selection(names) for names in ctx.model.balanced[key])


def _balanced(ctx: Context, e: nodes.Call, operators: frozenset[str], stages: Stages) -> list[list[str]]:
    """The operators of each stage, by the outermost units that are good enough; raises PlanError."""
    best: list[list[str]] | None = None
    units: list[Unit] = []
    deepest = max(1, deepest_level(ctx.model, operators))
    # The last turn, one beyond the deepest level, cuts between any two modules.
    for level in range(1, deepest + 2):
        ctx.budget.spend(e, 1 + len(operators) // 12)
        find_all = level > deepest
        units = module_runs(ctx.model, operators) if find_all else repeated_units(ctx.model, operators, level)
        if len(units) < count_of(stages):
            continue
        found, is_good = _stages(ctx, units, stages)
        if is_good or not find_all or best is None:
            best = found
        if is_good:
            break
    if best is None:
        names = tuple(path or ctx.model.operators[run[0]].module for path, run in units)
        raise PlanError(TooFewUnits(e.span, names, count_of(stages)))
    return best


def arguments(ctx: Context, e: nodes.Call, given: tuple[Value, ...], statement: str) -> tuple[frozenset[str], Stages]:
    """The operators and the stages that a call gives. Raises PlanError for parts of operators, and if no operator of
    the selection can have a place."""
    value, stages = given
    stages_at = e.arguments[1]
    assert not isinstance(stages_at, nodes.Keyed)
    operators = required(value, is_selection, e.arguments[0], Wanted.OPERATORS)
    require_whole(ctx, operators, e, statement)
    found = _shares(ctx, stages_at, stages) if isinstance(stages, tuple | range) else stages
    if not isinstance(found, tuple) and not is_whole(found):
        raise PlanError(WrongType(stages_at.span, Wanted.STAGES, found))
    if count_of(found) < 1:
        raise PlanError(BadCount(stages_at.span, f"{count_of(found)} parts"))
    if not ctx.model.only_compute(operators.operators):
        raise PlanError(NothingSelected(e.arguments[0].span))
    return operators.operators, found


def _shares(ctx: Context, at: nodes.Expr, given: tuple[Value, ...] | range) -> Stages:
    """The stages of a list of shares, in least whole numbers: `[1, 0.5]` is (2, 1). For equal shares it is their
    number. Raises PlanError."""
    ctx.budget.spend(at, 1 + len(given) // 64)
    shares: list[Number] = []
    for share, place in zip(given, places_of(at, len(given)), strict=True):
        shares.append(required(share, is_number, place, Wanted.SHARE))
        if shares[-1] <= 0:
            raise PlanError(BadShare(place.span, shares[-1]))
    unit = lcm(*(share.denominator for share in shares))
    whole = [int(share * unit) for share in shares]
    return len(whole) if len({*whole}) < 2 else tuple(share // gcd(*whole) for share in whole)


def count_of(stages: Stages) -> int:
    """The number of stages."""
    return stages if isinstance(stages, int) else len(stages)


def _stages(ctx: Context, units: list[Unit], stages: Stages) -> tuple[list[list[str]], bool]:
    """The operators of the stages, and whether the one that is heaviest for its share is near to the mean."""
    shares = (1,) * stages if isinstance(stages, int) else stages
    for join in joined, _with_light_ends:
        together = join(ctx.model, units)
        units = together if len(together) >= len(shares) else units
    weights = [weight_of(ctx.model, names) for _, names in units]
    cuts = partition(weights, shares)
    heaviest = max(sum(weights[a:b]) / share for (a, b), share in zip(cuts, shares, strict=True))
    found = [[n for _, names in units[a:b] for n in names] for a, b in cuts]
    return found, heaviest <= GOOD_ENOUGH * sum(weights) / sum(shares)


def weight_of(model: ModelIndex, names: Iterable[str]) -> int:
    """FLOPs of a forward, and one an operator."""
    return sum(model.operators[n].flops + 1 for n in names)


def _with_light_ends(model: ModelIndex, units: list[Unit]) -> list[Unit]:
    """The units, the last of them merged with those before it up to one of some weight: a loss stays with the head that
    makes its logits, which are larger than anything else that a stage could send."""
    weights = [weight_of(model, names) for _, names in units]
    last = len(units) - 1
    while last > 0 and weights[last] < LIGHT * max(weights):
        last -= 1
    return [*units[:last], (units[last][0], [n for _, names in units[last:] for n in names])]


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


def partition(weights: list[int], shares: tuple[int, ...]) -> list[tuple[int, int]]:
    """Bounds of non-empty runs, one for each share, such that the largest of sum / share is minimal; among those, the
    sums are nearly in proportion to the shares.

    >>> partition([1, 1, 1, 1, 1, 1], (4, 1, 1)), partition([1, 1, 1, 1, 1, 1], (1, 1, 1))
    ([(0, 4), (4, 5), (5, 6)], [(0, 2), (2, 4), (4, 6)])
    """
    sums = [0, *accumulate(weights)]
    unit = lcm(*shares)
    costs = [unit // share for share in shares]  # of a run: its sum, in whole numbers, divided by its share
    caps = _least_caps(sums, costs)
    ends = _ends(sums, caps)
    bounds, start = [], 0
    for number, cap in enumerate(caps):
        goal = (sums[-1] - sums[start]) * shares[number] / sum(shares[number:])
        fits = [end for end in ends[number] if end > start and sums[end] - sums[start] <= cap]
        end = min(fits, key=lambda end: (abs(sums[end] - sums[start] - goal), end))
        bounds.append((start, end))
        start = end
    return bounds


def _least_caps(sums: list[int], costs: list[int]) -> list[int]:
    """The largest sum that each run may have, if no run exceeds the least possible cost.

    A run's cost is its sum times the number in `costs`: with shares 4, 1, 1 these are 1, 4, 4, and runs of a cost of 8
    have sums of at most 8, 2, 2.
    """

    def caps(cost: int) -> list[int]:
        return [cost // each for each in costs]

    low, most = 0, sums[-1] * max(costs)
    for holds in (_reach_the_end, _ends):  # the first is quick, and holds wherever the second does
        high = low if holds(sums, caps(low)) else most
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(sums, caps(middle)) else (middle + 1, high)
    return caps(low)


def _reach_the_end(sums: list[int], caps: list[int]) -> bool:
    """Whether runs within their caps can hold all units, if runs may be empty: each takes as many as it can."""
    end = 0
    for cap in caps:
        end = bisect_right(sums, sums[end] + cap) - 1
    return end == len(sums) - 1


def _ends(sums: list[int], caps: list[int]) -> list[list[int]]:
    """For each run, the ends after which the later runs can hold the rest within their caps. Empty if no runs hold all
    units within their caps.

    `sums[n]` is the weight of the first n units.
    """
    found = [[len(sums) - 1]]
    for number in range(len(caps) - 1, 0, -1):
        # the starts of a run are the ends of the one before; `at` is the nearest end after a start, and both grow
        ends, cap, at = found[-1], caps[number], 0
        starts: list[int] = []
        for start in range(number, ends[-1]):
            while ends[at] <= start:
                at += 1
            if sums[ends[at]] - sums[start] <= cap:
                starts.append(start)
        if not starts:
            return []
        found.append(starts)
    return found[::-1] if any(sums[end] <= caps[0] for end in found[-1]) else []
