"""`cut(OPS, S)` and `widths(D, S, ALLOWED)`: the stages of a pipeline, and the number of devices of each, as the plan
gives them; otherwise they are balanced."""

import math
from functools import lru_cache
from itertools import pairwise
from typing import TypeGuard

from ssdsl.lang import nodes
from ssdsl.lang.suggest import counted, joined
from ssdsl.plan.context import Context
from ssdsl.plan.errors.parts import BadCount
from ssdsl.plan.errors.select import NothingSelected
from ssdsl.plan.errors.traced import Traced
from ssdsl.plan.errors.values import Wanted, items_of, places_of, required
from ssdsl.plan.eval.balance import arguments, balance, count_of
from ssdsl.plan.eval.select import by_path
from ssdsl.plan.values import Selection, Value, is_selection, is_text, is_whole
from ssdsl.text.diagnostic import PlanError


def cut(ctx: Context, e: nodes.Call, given: tuple[Value, ...], before: Value = None) -> tuple[Selection, ...]:
    """The selections of the stages: as `balance` makes them, or each beginning at a module of `before`; a stage is
    empty if the next one begins at the same module.

    Raises PlanError if `before` is no list of S - 1 paths or selections in the order of the model.
    """
    if before is None:
        return balance(ctx, e, given)
    operators, wanted = arguments(ctx, e, given, "cut")
    stages = count_of(wanted)
    at = next(a.value for a in e.arguments if isinstance(a, nodes.Keyed))
    begins = items_of(ctx, before, _is_begin, at, Wanted.PATHS, least=0)
    if len(begins) != stages - 1:
        raise PlanError(BadCuts(at.span, len(begins), stages))
    placed = ctx.model.only_compute(operators)
    order = [op.name for op in ctx.model.ordered(placed)]
    ctx.budget.spend(e, 1 + len(order) // 64)
    position = {name: k for k, name in enumerate(order)}
    starts = [0]
    for begin, place in zip(begins, places_of(at, len(begins)), strict=True):
        found = begin.operators & placed if isinstance(begin, Selection) else _at_path(ctx, placed, begin, place)
        if not found:
            raise PlanError(NothingSelected(place.span))
        starts.append(min(position[name] for name in found))
        if starts[-1] < starts[-2]:
            first, last = (ctx.model.operators[order[start]].module for start in starts[-2:])
            raise PlanError(BadCuts(place.span, len(begins), stages, last, first))
    return tuple(Selection(frozenset(order[a:b])) for a, b in pairwise([*starts, len(order)]))


def _is_begin(value: Value) -> TypeGuard[str | Selection]:
    return is_text(value) or is_selection(value)


def _at_path(ctx: Context, placed: frozenset[str], path: str, at: nodes.Expr) -> frozenset[str]:
    return by_path(ctx, Selection(placed), path, at).operators


class BadCuts(Traced):
    """`cut(OPS, S, before = MODULES)` needs the first module of each stage but the first, by its path or selected.

    These are S - 1 modules in the order of the model; a module that is named twice leaves an empty stage.

    `ssdsl search` writes these lists, which fit one number of stages. `cut(OPS, S)` alone balances any number.
    """

    code = "E0284"
    title = "{reason}"
    begins: int
    stages: int
    later: str = ""  # the module at which a stage would begin in front of the one before, at `earlier`
    earlier: str = ""

    @property
    def reason(self) -> str:
        if not self.later:
            return f"{self.stages} stages are cut at {counted(self.stages - 1, 'place')}, not {self.begins}"
        return f"`{self.later}` does not come after `{self.earlier}`, where the stage before begins"

    @property
    def change(self) -> str:
        last = self.stages - 1
        these = "the module that begins stage 1" if last == 1 else f"the modules that begin stages 1 to {last}"
        wanted = f"name {these}, in the order of the model"
        return f"{wanted}, or leave `before` out: stages are then balanced"


def widths(ctx: Context, e: nodes.Call, given: tuple[Value, ...], each: Value = None) -> tuple[int, ...]:
    """The numbers of `each`; without it, numbers of the list that are as equal as can be, the smaller ones first.

    Raises PlanError if `each` is no list of S numbers with the sum D, or if no S numbers of the list have that sum.
    """
    allowed = items_of(ctx, given[2], is_whole, e.arguments[2], Wanted.WIDTHS)
    devices, stages = (
        required(value, is_whole, at, Wanted.WHOLE) for value, at in zip(given[:2], e.arguments, strict=False)
    )
    if stages < 1:
        raise PlanError(BadCount(e.arguments[1].span, f"{stages} parts"))
    if each is None:
        ctx.budget.spend(e, 1 + len(allowed) * stages // 64)
        found = most_equal(devices, stages, allowed)
        if found is None:
            raise PlanError(BadWidths(e.span, devices, stages, allowed))
        return found
    at = next(a.value for a in e.arguments if isinstance(a, nodes.Keyed))
    numbers = items_of(ctx, each, is_whole, at, Wanted.WIDTHS)
    if len(numbers) != stages or sum(numbers) != devices or min(numbers) < 1:
        raise PlanError(BadWidths(at.span, devices, stages, allowed, numbers))
    return numbers


def slices(ctx: Context, e: nodes.Call, given: tuple[Value, ...], each: Value = None) -> int | tuple[int, ...]:
    """The number of parts of an index, which are equal; or the lengths of `each`. Raises PlanError for another number
    of these."""
    count = required(given[0], is_whole, e.arguments[0], Wanted.WHOLE)
    if each is None:
        return count
    at = next(a.value for a in e.arguments if isinstance(a, nodes.Keyed))
    lengths = items_of(ctx, each, is_whole, at, Wanted.PARTS)
    if len(lengths) != count:
        raise PlanError(BadSlices(at.span, count, len(lengths)))
    return lengths


@lru_cache(1000)
def most_equal(devices: int, stages: int, allowed: tuple[int, ...]) -> tuple[int, ...] | None:
    """Numbers of `allowed`, one for each stage, ascending, with the sum `devices` and the least sum of squares; None if
    there are none.

    >>> most_equal(8, 3, (1, 2, 4, 8))
    (2, 2, 4)
    """
    numbers = sorted({n for n in allowed if 1 <= n <= devices})
    rows: list[dict[int, tuple[int, int]]] = [{0: (0, 0)}]  # by sum: the squares, and the last number
    for _ in range(stages):
        row: dict[int, tuple[int, int]] = {}
        for total, (squares, _) in rows[-1].items():
            for n in numbers:
                if total + n <= devices and squares + n * n < row.get(total + n, (math.inf, 0))[0]:
                    row[total + n] = squares + n * n, n
        rows.append(row)
    if devices not in rows[-1]:
        return None
    found: list[int] = []
    for row in rows[:0:-1]:
        found.append(row[devices][1])
        devices -= found[-1]
    return tuple(sorted(found))


class BadSlices(Traced):
    """`into t = slices(T)` is T equal parts; `slices(T, each = [40, 24])` are parts of these lengths, which `ssdsl
    search` finds."""

    code = "E0384"
    title = "{given} lengths are given for {slices} slices"
    help = "list {slices} lengths, or leave `each` out"
    slices: int
    given: int


class BadWidths(Traced):
    """`widths(D, S, ALLOWED)` gives each of S stages a number of devices from a list, D in total; `each` lists them.

    `ssdsl search` finds good numbers, and writes `each`; without it they are as equal as the list allows.
    """

    code = "E0286"
    title = "{reason}"
    devices: int
    stages: int
    allowed: tuple[int, ...]
    each: tuple[int, ...] = ()  # empty where the plan gives none

    @property
    def reason(self) -> str:
        if not self.each:
            allowed = joined([*map(str, self.allowed)], "or")
            return f"{counted(self.stages, 'stage')} of {allowed} devices cannot make {counted(self.devices, 'device')}"
        if len(self.each) != self.stages:
            return f"{len(self.each)} numbers of devices are given for {self.stages} stages"
        if min(self.each) < 1:
            return "a stage has no devices"
        return f"the stages have {sum(self.each)} devices, not {self.devices}"

    @property
    def change(self) -> str:
        if self.each:
            return f"list {self.stages} numbers that make {self.devices}, or leave `each` out"
        return "list more numbers, or change the number of stages or of devices"
