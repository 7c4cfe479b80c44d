"""`cut(OPS, S)`: divides operators into S runs in the order of the graph; `before` names the modules that begin
them."""

from itertools import pairwise

from ssdsl.lang import nodes
from ssdsl.lang.suggest import counted
from ssdsl.plan.context import Context
from ssdsl.plan.errors.traced import Traced
from ssdsl.plan.errors.values import Wanted, items_of
from ssdsl.plan.eval.balance import arguments, balance, count_of
from ssdsl.plan.eval.select import by_path
from ssdsl.plan.eval.values import Selection, Value, is_a
from ssdsl.text.diagnostic import PlanError


def cut(ctx: Context, e: nodes.Call, given: tuple[Value, ...], before: Value = None) -> tuple[Selection, ...]:
    """The selections of the stages, none of them empty: as `balance` makes them, or each beginning at a module of
    `before`.

    Raises PlanError if `before` is no list of S - 1 paths in the order of the model.
    """
    if before is None:
        return balance(ctx, e, given)
    operators, wanted = arguments(ctx, e, given, "cut")
    stages = count_of(wanted)
    at = next(a.value for a in e.arguments if isinstance(a, nodes.Keyed))
    paths = items_of(before, is_a(str), at, Wanted.PATHS, least=0)
    if len(paths) != stages - 1:
        raise PlanError(BadCuts(at.span, paths, stages))
    places = at.items if isinstance(at, nodes.ListOf) else (at,) * len(paths)
    placed = ctx.model.only_compute(operators)
    order = [op.name for op in ctx.model.ordered(placed)]
    ctx.budget.spend(e, 1 + len(order) // 64)
    position = {name: k for k, name in enumerate(order)}
    starts = [0]
    for path, place in zip(paths, places, strict=True):
        found = by_path(ctx, Selection(placed), path, place).operators
        starts.append(min(position[name] for name in found))
        if starts[-1] <= starts[-2]:
            raise PlanError(BadCuts(place.span, paths, stages, path))
    return tuple(Selection(frozenset(order[a:b])) for a, b in pairwise([*starts, len(order)]))


class BadCuts(Traced):
    """`cut(OPS, S, before = PATHS)` needs the first module of each stage but the first.

    These are S - 1 modules in the order of the model.

    `ssdsl search` writes these lists, which fit one number of stages. `cut(OPS, S)` alone balances any number.
    """

    code = "E0284"
    title = "{reason}"
    paths: tuple[str, ...]
    stages: int
    empty: str = ""  # the path that would leave the stage in front of it empty

    @property
    def reason(self) -> str:
        if not self.empty:
            return f"{self.stages} stages are cut at {counted(self.stages - 1, 'place')}, not {len(self.paths)}"
        return f"no operators are left for the stage in front of `{self.empty}`"

    @property
    def change(self) -> str:
        last = self.stages - 1
        these = "the module that begins stage 1" if last == 1 else f"the modules that begin stages 1 to {last}"
        wanted = f"name {these}, in the order of the model"
        return f"{wanted}, or leave `before` out: stages are then balanced"
